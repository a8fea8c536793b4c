"""The vocabulary of the tracker: who works in the shop, what they work on, what goes wrong. No brands, no real people."""
# ruff: noqa: E501 (a row of a table is a line)

from __future__ import annotations

TEAM = (
    "Anselm Corrigan", "Bettina Osei", "Corin Vandermeer", "Delphine Akers", "Emeka Thorvald", "Freya Montclair", "Gideon Sala",
    "Hedda Prescott", "Idris Falco", "Junia Weatherby", "Kasimir Dole", "Liora Benning",
)  # fmt: skip
"""Who works on tickets; no customer has one of these names."""
COMPONENTS = (
    "catalogue data", "checkout", "newsletter", "payments", "photos", "returns", "search", "shipping", "storefront", "warehouse",
)  # fmt: skip
MILESTONES = (
    ("Spring 2023", (2023, 4, 28), "Fewer questions by telephone."),
    ("Summer 2023", (2023, 7, 28), "New photos for all shelves."),
    ("Autumn 2023", (2023, 10, 27), "Ready for the busiest weeks of the year."),
    ("Winter 2023", (2023, 12, 15), "What could not wait until the new year."),
    ("Spring 2024", (2024, 4, 26), "The warehouse and the pages say the same."),
    ("Summer 2024", (2024, 7, 26), "A checkout of three steps."),
    ("Autumn 2024", (2024, 10, 25), "Returns without paper."),
    ("Winter 2024", (2024, 12, 13), "Faster pages on small screens."),
)
"""Name, day that it is due, what it is for."""
NUM_COMPLETED = 4
"""Of the milestones."""
KEYWORDS = (
    "mobile",
    "printing",
    "accessibility",
    "wording",
    "speed",
    "tax",
    "carrier",
    "label",
    "translation",
    "stock",
)

ON_ORDERS = (
    (
        "Order {number}: parcel arrived damaged",
        "shipping",
        "defect",
        "The box was open on one side. I have three photos and would like a replacement.",
    ),
    (
        "Order {number}: a product is missing from the parcel",
        "shipping",
        "defect",
        "The packing list names {product}, but it was not in the box.",
    ),
    (
        "Order {number}: invoice shows an old address",
        "checkout",
        "defect",
        "The parcel came to the right place; the invoice has the address from before I moved.",
    ),
    (
        "Order {number}: please send a return label",
        "returns",
        "task",
        "I would like to return {product}: not used, still in its box.",
    ),
    (
        "Order {number}: charged twice",
        "payments",
        "defect",
        "Two charges of the same amount on the same day. One of them must go back.",
    ),
    (
        "Order {number}: no mail about the dispatch",
        "newsletter",
        "defect",
        "The parcel was a surprise. I have looked into the spam folder as well.",
    ),
    (
        "Order {number}: delivered to the neighbour without a card",
        "shipping",
        "enhancement",
        "The carrier should leave a card. It took me two days to find the parcel.",
    ),
)
ON_PRODUCTS = (
    (
        "{product}: weight on the page is wrong",
        "catalogue data",
        "defect",
        "The page says one thing, the scales in the warehouse another. Weigh it again and correct the page.",
    ),
    (
        "{product}: photo shows another finish",
        "photos",
        "defect",
        "The photo is of another one of the same kind. Take a new one, front and side.",
    ),
    (
        "{product}: count differs from the page",
        "warehouse",
        "defect",
        "The shelf holds fewer than the page says. Count twice, then correct the number in stock.",
    ),
    (
        "{product}: cannot be found by its SKU",
        "search",
        "defect",
        "A customer typed the number from the invoice and found nothing.",
    ),
    (
        "{product}: supplier announces a longer guarantee",
        "catalogue data",
        "task",
        "From next month on. The text of the page and the table of attributes must agree.",
    ),
    (
        "{product}: measurements for the page",
        "catalogue data",
        "enhancement",
        "Three customers have asked how deep it is. Measure it and add the number to the text.",
    ),
    (
        "{product}: packaging does not protect the corners",
        "warehouse",
        "enhancement",
        "Two came back dented. Try the boxes with the folded edges.",
    ),
)
PRICE = (
    "{product}: new price",
    "catalogue data",
    "task",
    "The supplier has written: from now on we sell it at {price} dollars. Change the price in the dashboard, then close this ticket as fixed.",
)
STOCK = (
    "{product}: stocktake",
    "warehouse",
    "task",
    "We have counted {count} pieces. Correct the number in stock in the dashboard, then close this ticket as fixed.",
)
"""Tickets that name what is to be done in the shop's dashboard."""
ON_SITE = (
    ("The basket forgets a changed quantity", "storefront"), ("Filters of the product list are lost", "search"),
    ("The reviews of a product are sorted at random", "storefront"), ("The button to pay is below the fold", "checkout"),
    ("The address form drops the second line", "checkout"), ("The voucher field takes no small letters", "checkout"),
    ("Order confirmation is hard to print", "checkout"), ("Search finds nothing for plural words", "search"),
    ("Pictures load slowly in category lists", "photos"), ("The return label cannot be read by scanners", "returns"),
    ("Unsubscribing from the newsletter shows an error", "newsletter"), ("Delivery dates are in the past", "shipping"),
    ("The wish list shows products that are gone", "storefront"), ("Refunds are listed twice", "payments"),
    ("Prices jump while the page loads", "storefront"), ("The menu covers the first products", "storefront"),
    ("Stock alerts come a day late", "warehouse"), ("The zoom of pictures cannot be closed", "photos"),
    ("The page of returns asks for the order number twice", "returns"), ("Card payments time out", "payments"),
    ("Breadcrumbs lead to the wrong category", "catalogue data"), ("The carrier cannot be chosen", "shipping"),
    ("Sorting by price ignores cents", "search"), ("The newsletter names last month's offers", "newsletter"),
)  # fmt: skip
PLACES = (
    "on small screens",
    "in private windows",
    "after logging in",
    "on slow connections",
    "with enlarged text",
    "with the keyboard alone",
)
SITE_TEXTS = (
    "It happens every time, and did not happen last month.",
    "Seen on two machines. A reload sometimes helps.",
    "I can send a recording of the screen.",
    "A friend of mine has seen the same.",
)
COMMENTS = (
    "I can see it here too.",
    "Could not reproduce it this morning; will try again with an older browser.",
    "The customer has been told that we are working on it.",
    "Waiting for an answer from the supplier.",
    "Half of it is done. The rest needs a second pair of hands.",
    "This looks like the one that we had in spring.",
    "Done on the test pages. Please have a look before it goes live.",
    "The carrier says that it was their mistake and will pay.",
    "Measured it: three of ten are affected.",
    "I have written a note on the wiki page of this shelf.",
    "Let us talk about this on Monday.",
    "Moved to the next week, two of us are ill.",
)
CLOSING = {
    "fixed": "Fixed and checked on the live pages.",
    "invalid": "This is how it is meant to be.",
    "wontfix": "The effort would be larger than the gain.",
    "duplicate": "We have had this before.",
    "worksforme": "Works in every browser that we have.",
}
SUPPLIERS = (
    "Ashgrove Trading", "Bellweather Goods", "Cinderford Works", "Dunmarrow & Daughters", "Eastholm Supply", "Fernhollow Wholesale",
    "Greyharbour Imports",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
PAGES = {
    "ShippingRules": "= Shipping rules =\n * Orders paid before noon leave on the same day.\n * From 50 dollars on, shipping is free; below it costs 4.90.\n * Glass and ceramics go into boxes with folded edges.\n * Anything above 25 kg goes by freight: tell the customer the day before.\n",
    "ReturnsPolicy": "= Returns =\nWithin 30 days, unused and in its box.\n 1. Open a ticket of the component ''returns'' and name the order in its summary.\n 2. Send the label by mail.\n 3. Refund when the parcel is back, then close the ticket as fixed.\n",
    "TicketRules": "= How we work with tickets =\n * A defect is something that did work or should; an enhancement is a wish; a task is work that somebody has planned.\n * Blocker: nobody can buy. Critical: one in ten cannot. Major: annoying. Minor and trivial: everything else.\n * Who takes a ticket accepts it. Who cannot go on says so in a comment.\n * Close as ''worksforme'' only after two people have tried.\n",
    "PhotoGuide": "= Photos =\nNorth window, before eleven. Grey card in the first picture, removed in the second. Front, side, detail, and one with a hand for the size.\n",
    "PriceChanges": "= Price changes =\nSuppliers write to the office; the office opens a ticket called ''PRODUCT: new price''. Whoever has the dashboard open changes the price there (''Stock and pricing'') and closes the ticket as fixed.\n",
    "Stocktaking": "= Stocktaking =\nEach shelf has its day; see its page. Count twice. If both counts agree, correct the number in stock in the dashboard; if not, count a third time with somebody else.\n",
    "Telephone": "= At the telephone =\nAsk for the order's number first. Say what happens next and by when. Write it into the ticket while you talk.\n",
}
"""Pages of the wiki beside those of the shelves."""
