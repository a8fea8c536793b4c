"""Names of the forum's boards that have a part of their own; all of them are in `webrl/arena/data/forum.yaml`."""

ANNOUNCEMENTS, QUESTIONS, ORDERS = "Announcements", "Product questions", "Orders and delivery"
SWAP, POLLS = "Swap and give away", "Polls"
