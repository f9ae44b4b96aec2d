"""Control flow: loops and branches whose bodies are graphs of their own."""
