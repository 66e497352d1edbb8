"""The performance ladder: this store side by side with bare libraries and a peer, as ratios taken in one run."""
