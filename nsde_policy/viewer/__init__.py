"""Live page in the browser: watch and disturb running policies, or record demonstrations by hand.

`simulation` is the table with its history, `policy_runner` a policy on it, `forecast` what it predicts;
`play_app` and `record_app` are the two apps; `messages` are the JSON messages, `http` and `server` the web
server, `static/` the page. `episodes` is the page of recorded episodes.
"""
