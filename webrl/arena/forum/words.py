"""The vocabulary of the arena's forum. No brands, no real people; `content.py` draws from these tables."""

from __future__ import annotations

BOARDS = {
    "About the shop": {
        "Announcements": "News from the shop. Only its staff start topics here.",
        "Product questions": "Ask before you buy: somebody has it, or can look it up.",
        "Orders and delivery": "Parcels, dates, returns.",
        "Wishes and ideas": "What the shop should do next.",
    },
    "What we use": {
        "Kitchen": "Cooking, baking, and what it takes.",
        "Home": "Light, linen and shelves.",
        "Garden": "Beds, pots and birds.",
        "Outdoors": "On foot, on two wheels, under canvas.",
        "Office": "Pens, paper and desks.",
        "Toys": "For small hands and long evenings.",
        "Music": "Instruments, and what keeps them in tune.",
    },
    "Everything else": {
        "Introductions": "Say hello.",
        "Swap and give away": "What you no longer need. The staff read each post before it appears.",
        "Polls": "One question, one vote each.",
    },
}
ANNOUNCEMENTS, QUESTIONS, ORDERS, WISHES = BOARDS["About the shop"]
INTRODUCTIONS, SWAP, POLLS = BOARDS["Everything else"]

CHOICE_SUBJECTS = (
    "Which finish for a {kind}?",
    "{kind}: what does yours look like?",
    "{kind}: help me choose a finish",
)
CHOICE_OPENINGS = (
    "I want to buy one this month and cannot decide. Which finish do you have, and would you take it again?",
    "Mine broke after many years, so I need another. Which finish wears best?",
    "It is to be a present for a wedding. Which finish would you pick?",
    "There are six finishes in the shop and I like all of them. Please decide for me.",
)
CHOICE_REPLIES = (
    "I took {finish} and have never looked back.",
    "{finish}, without any doubt.",
    "We have had {finish} for two years; it still looks new.",
    "My vote goes to {finish}. It goes with everything.",
    "After trying a friend's I bought {finish}.",
    "{finish} is easiest to keep clean, in my experience.",
)

ASKS = {
    "price": ("{kind}: what does this one cost?", "Can somebody tell me the price of the {product}?"),
    "stock": ("{kind}: how many are left?", "Does anybody know how many of the {product} the shop has in stock?"),
    "weight": ("{kind}: how heavy is this one?", "What does the {product} weigh?"),
}
"""What is asked about a product: subject and text."""
ASK_ENDINGS = (
    "My connection is too slow for the shop's pages.",
    "I am on the train and can only read the forum.",
    "I looked, but I must have missed it.",
    "It is for a present, so please be quick.",
)
ASK_REPLIES = (
    "I would like to know that too.",
    "No idea, but a friend of mine is very happy with hers.",
    "Have you asked the staff?",
    "It is on the product's page, but I am not at home to look it up.",
    "Following this, as I want the same one.",
    "I did know it once. Somebody here will.",
)

IDEAS = (
    "a gift wrapping option", "a list of spare parts", "reviews with pictures", "a repair day", "smaller parcels",
    "a printed catalogue", "a loyalty card", "opening hours for collection", "a size guide", "recipes on the labels",
    "a second-hand corner", "a workshop for beginners",
)  # fmt: skip
CHATS = {
    INTRODUCTIONS: (
        "Hello from {city}",
        ("I have read along for a while and now I have an account too.", "My neighbour told me about this place."),
        (
            "Welcome!",
            "Good to have you here.",
            "Hello, and greetings from the coast.",
            "Another early riser, it seems.",
        ),
    ),
    ORDERS: (
        "Parcel to {city}: how long?",
        ("I ordered on Monday. When may I expect it?", "How many days does delivery take to where I live?"),
        (
            "Mine took four days.",
            "A week, over the holidays.",
            "It came on the third day.",
            "Two days, to my surprise.",
        ),
    ),
    WISHES: (
        "Idea: {idea}",
        ("I would use this every month.", "Other shops have it, and I miss it here.", "Who else would like it?"),
        ("Good idea.", "I would rather have lower prices.", "Yes, please.", "Only if nothing else gets slower."),
    ),
    SWAP: (
        "Giving away: {kind}",
        ("Hardly used. First come, first served.", "It has a scratch, but it works.", "Collect it any evening."),
        ("I will take it.", "Is it still there?", "I can collect it on Saturday.", "Would you swap it for a cake?"),
    ),
}
"""By board: subject, first posts, replies."""
PENDING = (
    "I could collect it tonight.", "Would you post it to me?", "I offer two jars of honey for it.",
    "Please keep it for me until Friday.", "My sister is looking for just this.", "I will bring flowers.",
)  # fmt: skip
"""Replies that wait for the staff."""

POLL_QUESTIONS = {
    "When do you order?": ("In the morning", "At lunch", "In the evening", "At night"),
    "Tea or coffee?": ("Tea", "Coffee", "Both", "Neither"),
    "How often do you buy here?": ("Every week", "Every month", "Twice a year", "Hardly ever"),
    "What should come next?": ("More tools", "More toys", "More books", "Nothing new"),
    "Which season is yours?": ("Spring", "Summer", "Autumn", "Winter"),
    "Gas, electric or induction?": ("Gas", "Electric", "Induction", "An open fire"),
    "How do you get to work?": ("On foot", "By bicycle", "By train", "I work at home"),
    "Where do you read the forum?": ("At my desk", "In bed", "On the train", "In the garden"),
    "Which instrument do you play?": ("Strings", "Percussion", "Wind", "None yet"),
    "Paper or cloth bags?": ("Paper", "Cloth", "A basket", "My hands"),
    "How many plants do you have?": ("None", "One to five", "Six to twenty", "I lost count"),
    "Do you write by hand?": ("Every day", "Now and then", "Only cards", "Never"),
    "What is your favourite game?": ("Chess", "Backgammon", "Dominoes", "Something else"),
    "How do you camp?": ("In a tent", "In a van", "In a hut", "Not at all"),
    "Who cooks at your place?": ("I do", "Someone else", "We take turns", "Nobody"),
    "How long do you keep things?": ("Until they break", "Until I tire of them", "For ever", "I give them away"),
}
NEWS = {
    "The shop will be closed over New Year": "Orders of those days leave on the second of January.",
    "New in the warehouse: a second packing table": "Parcels should leave a little sooner from now on.",
    "House rules of this forum": "Be kind, stay on topic, and ask before you post a long list.",
    "Thank you for a thousand reviews": "We read every one of them.",
}
