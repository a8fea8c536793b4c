"""The vocabulary of the arena's mail. No brands, no real people; `content.py` draws from these tables."""

from __future__ import annotations

REQUESTS = {
    "cancel": (
        "Order {number}: please cancel",
        "I ordered the wrong size. Please cancel the whole order.",
        "My plans have changed and I no longer need it. Could you cancel the order?",
        "It was ordered twice by mistake. Please cancel this one.",
    ),
    "total": (
        "Order {number}: which total?",
        "The amount is smudged on my invoice. What did I pay in all, shipping included?",
        "My bookkeeper asks for the total of this order. Please send me the number.",
        "I have lost the confirmation. Which total did you charge?",
    ),
    "fault": (
        "Order {number}: it rattles",
        "It has made a noise from the first day. What can be done?",
        "Something in it has come loose. Please tell the people in the warehouse.",
        "When I turn it upside down it rattles. I would rather have it looked at.",
    ),
}
"""What customers ask the staff for: the subject, then texts."""
ANSWERED = (
    ("Order {number}: many thanks", "It came a day early and is just as shown.", "That is good to hear. Enjoy it!"),
    ("Order {number}: a card?", "Can you add a card for my sister?", "With pleasure. It is in the parcel."),
    ("Order {number}: spare parts", "Will there be spare parts in five years?", "Yes, we keep them for ten."),
)
"""Subject, what a customer wrote, and the staff's answer."""
VOUCHER = (
    "Order {number}: a voucher",
    "Thank you for being patient with us. Your voucher code is {code}; it is worth five dollars.",
    "A small gift for a good customer: the voucher code is {code}, for your next order.",
    "We are sorry for the late parcel. Please take the voucher code {code} off your next bill.",
)
CODES = ("BIRCH", "CEDAR", "HAZEL", "LINDEN", "MAPLE", "ROWAN", "SPRUCE", "WILLOW")

ACTIVITIES = (
    "Chess", "Sketching", "Stargazing", "Mushrooms", "Kites", "Soup", "Backgammon", "Birdwatching", "Seedlings",
    "Rowing",
)  # fmt: skip
INVITATIONS = (
    "Shall we meet on {day} at {time}, by the {spot}? I bring what we need.",
    "I will be at the {spot} on {day} at {time}. It would be good to have company.",
    "There is a place left for you on {day}: at {time}, near the {spot}.",
    "If it stays dry, come to the {spot} on {day} at {time}.",
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
SPOTS = ("old bridge", "library", "market hall", "boat house", "water tower", "tram stop", "town museum", "north gate")
REPLIES = (
    "Gladly. May I bring my brother?",
    "I would like that. What shall I wear?",
    "Yes, if my train is on time.",
    "That sounds good. I will bring a thermos.",
)
MORE = ("Of course.", "Warm clothes are enough.", "No hurry, we shall wait for you.", "Perfect, see you there.")
LAST = ("Then it is settled.", "I look forward to it.", "Thank you, until then.")
