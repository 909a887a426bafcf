"""The pure part: nouns, session keys, commands, every text people see, prompt arithmetic, Markdown. No I/O."""
