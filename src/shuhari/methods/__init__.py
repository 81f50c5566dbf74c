"""Methods of papers, a folder each: `recipe.toml` is what the method changes, `claim.toml` how that is tested,
`README.md` its user page, with the modules that only this method uses."""
