"""A page where a policy runs live and can be touched, and where demonstrations are recorded by hand.

`world` is the table and its exact history, `lane` a policy on it, `forecast` what it expects; `play` and
`teleop` are what the page shows, `clockwork` the one thread that runs them; `messages` is what a page may
ask for, `hub` and `server` the people who look on.
"""
