"""`hearth doctor`: looks at everything a Hearth needs, changes nothing, and says in one line what is wrong and its cure.

`findings` has the nouns, `patient` what is examined, `checks` the list of all checks (a new one is entered there),
`runner` runs them one after the other. Every other module holds the checks of one kind: functions of a `Patient` that
return findings. Files of the machine are read below `Patient.root`, so that tests can play another machine.
"""
