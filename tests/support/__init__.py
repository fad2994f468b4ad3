"""What tests share: tiny models, makers of files and runs, the commands."""
