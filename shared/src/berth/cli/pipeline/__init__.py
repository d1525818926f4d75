"""The whole pipeline as child processes of one command."""
