"""Runs the whole pipeline as child processes of one command."""
