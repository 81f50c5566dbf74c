"""What the tests of the board share: its token, text that wants to be a program, the recipe of a small walk."""

TOKEN = "a-token-of-the-board-in-tests"
MARKUP = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>\x1b[2J\u202e"
WALK = """summary = "a walk"
steps = 2
task.name = "gridworld"
models.policy.use = "tabular"
rollout = {use = "episode", n = 1}
buffer.size = 4
transform.returns.gamma = 0.95
[part.policy]
terms.loss = {use = "clip", behaviour = "present"}
optimiser.lr = 0.1
"""
