"""Tests of atomlog."""
