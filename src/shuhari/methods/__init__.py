"""Methods of papers, a folder each: `recipe.toml` is what the method changes, `claim.toml` how that is tested,
`README.md` a page for its user; beside them the modules that no second method uses."""
