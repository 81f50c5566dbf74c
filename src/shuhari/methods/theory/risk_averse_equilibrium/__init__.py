"""A Game-Theoretic Framework for Managing Risk in Multi-Agent Systems."""
