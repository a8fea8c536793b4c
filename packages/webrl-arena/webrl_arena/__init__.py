"""Practice sites of webrl: a shop, a forum, a tracker and mail, with tasks and scripted experts."""
