"""Shared by devices that compile whole subgraphs: tables of ops, translation, compiled models and their memory."""
