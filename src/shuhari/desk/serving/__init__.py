"""`shuhari serve`: an OpenAI-compatible server for a run's policy, sampled by the same engine as in training.

A request is read (`asking`, `chatting`), its rows go to the engine in a thread of its own (`worker`), and their tokens
come back as text (`telling`) in the protocol's format (`replies`); `app` has the routes, `guard` protects them,
`running` opens a policy and starts the server. Left out: embeddings, images, batches in files, several models at once.
"""
