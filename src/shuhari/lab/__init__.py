"""What is found out about methods and runs: claims, diagnosis."""
