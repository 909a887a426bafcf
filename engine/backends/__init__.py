"""What runs a model: llama.cpp, a scripted one, or a server elsewhere. Decides nothing about who is served."""
