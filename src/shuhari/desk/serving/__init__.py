"""`shuhari serve`: the policy of a run behind the protocol of OpenAI, sampled by the engine that training samples with.

A request is read (`asking`, `chatting`), its rows go to the engine in a thread of its own (`worker`), and what they say
comes back as text (`telling`) in the protocol's words (`replies`); `app` has the addresses, `guard` stands before them,
`running` opens a policy and starts it all. Left out: embeddings, images, batches in files, several models at once.
"""
