"""Memory as an instrument: what a model file and its settings take on each device, and which settings fit.

`gguf` reads the head of a model file, `shapes` says what its architecture needs per token, `settings` how a context is
opened, `compute` how large its work buffer is, `ledger` adds it all up per device, `chooser` finds settings that fit (`spots`:
where a model can lie, `ladders`: what can be given up, `whatif`: what one knob costs), `probe` asks llama.cpp itself in a child
process. `auto` makes the plan of a start with what is `here`, `claims` keeps several models from planning with the same memory.

`tuner` measures around that plan (`tunesearch`: what is tried next, `tunerun` and `tunechild`: one run in a child, `measuring`:
what it does there, `tunestore`: every step on the disk) and `tuned` brings the best back at a start.
"""
