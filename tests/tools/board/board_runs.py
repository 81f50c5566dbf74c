"""What the tests of the board share: its token in tests, and text that wants to be a program."""

TOKEN = "a-token-of-the-board-in-tests"
MARKUP = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>\x1b[2J\u202e"
