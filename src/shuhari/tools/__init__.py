"""What a person asks for beside training: pictures, exports, times and the machine. Nothing that trains imports it."""
