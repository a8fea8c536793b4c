"""The vocabulary of the arena's content: what is sold, what is said about it, who buys it.

No brands, no real people. `content.py` draws from these tables.
"""
# ruff: noqa: E501 (a row of a table is a line)

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of product, sold in several finishes and sizes."""

    noun: str
    low: int
    """Cheapest price, in whole units of the currency."""
    high: int
    sizes: tuple[str, ...]
    purpose: str


class Shelf(NamedTuple):
    """A leaf category."""

    path: tuple[str, str]
    prefix: str
    """Of its SKUs."""
    finishes: tuple[str, ...]
    aspects: tuple[str, ...]
    """What reviews talk about."""
    care: str
    kinds: tuple[Kind, ...]


def _kinds(text: str) -> tuple[Kind, ...]:
    rows = [[part.strip() for part in line.split("|")] for line in text.strip().splitlines()]
    return tuple(
        Kind(noun, int(low), int(high), tuple(sizes.split("; ")), purpose)
        for noun, (low, high), sizes, purpose in ((row[0], row[1].split("-"), row[2], row[3]) for row in rows)
    )


METALS = ("Brushed Steel", "Copper", "Matt Black", "Enamelled Blue", "Polished Brass", "Cream")
WOODS = ("Oak", "Walnut", "Beech", "Ash", "Bamboo", "Cherry")
CLOTHS = ("Charcoal", "Moss Green", "Rust", "Navy", "Sand", "Burgundy")
BRIGHTS = ("Red", "Yellow", "Sky Blue", "Lime", "Orange", "Violet")

SHELVES = (
    Shelf(
        ("Kitchen", "Coffee & Tea"),
        "CT",
        METALS,
        ("spout", "handle", "lid", "filter"),
        "Rinse by hand and dry at once.",
        _kinds("""
            Pour-Over Kettle | 28-74 | 0.6 l; 0.8 l; 1.0 l; 1.2 l | A narrow gooseneck pours slowly and exactly where you want it.
            Coffee Grinder | 34-120 | 20 g; 30 g; 40 g | Conical burrs grind from Turkish fine to coarse for cold brew.
            French Press | 18-52 | 3 cups; 6 cups; 8 cups | A double mesh keeps the grounds out of the cup.
            Teapot | 16-48 | 0.5 l; 0.9 l; 1.4 l | The infuser basket lifts out once the tea is strong enough.
            Milk Frother | 12-39 | hand-held; 150 ml jug; 300 ml jug | Whips cold or warm milk into foam in under a minute."""),
    ),
    Shelf(
        ("Kitchen", "Pots & Pans"),
        "PP",
        METALS,
        ("base", "handle", "rim", "coating"),
        "Avoid scouring powder; the base suits gas, electric and induction hobs.",
        _kinds("""
            Frying Pan | 22-86 | 20 cm; 24 cm; 28 cm; 32 cm | Heats evenly to the edge and browns without hot spots.
            Saucepan | 19-69 | 1.5 l; 2.0 l; 3.0 l | Marked inside in decilitres, with a lip on either side for pouring.
            Casserole | 48-160 | 3 l; 4.5 l; 6 l | Heavy walls hold a slow simmer for hours.
            Wok | 27-72 | 28 cm; 32 cm; 36 cm | A flat base stands firm on any hob.
            Roasting Tin | 15-44 | small; medium; large | The rack keeps the joint out of its own fat."""),
    ),
    Shelf(
        ("Kitchen", "Knives & Boards"),
        "KB",
        WOODS,
        ("edge", "grip", "balance", "grain"),
        "Oil the wood twice a year.",
        _kinds("""
            Chef's Knife | 38-140 | 16 cm; 20 cm; 24 cm | Hard steel takes a fine edge and keeps it through a week of dinners.
            Paring Knife | 14-46 | 7 cm; 9 cm; 11 cm | For the work that is done in the hand rather than on the board.
            Bread Knife | 24-68 | 21 cm; 24 cm; 27 cm | Deep serrations start a crust without crushing the crumb.
            Chopping Board | 17-78 | 30 x 20 cm; 40 x 28 cm; 50 x 35 cm | End grain is kind to blades, and a groove catches the juice.
            Knife Block | 32-90 | 4 slots; 6 slots; 9 slots | Blades hang free, so that nothing dulls them."""),
    ),
    Shelf(
        ("Home", "Lighting"),
        "LI",
        METALS,
        ("shade", "switch", "cable", "light"),
        "Dust with a dry cloth after the bulb has cooled.",
        _kinds("""
            Desk Lamp | 29-110 | 35 cm; 45 cm; 60 cm | Two joints put the light where the work is.
            Floor Lamp | 68-230 | 140 cm; 155 cm; 170 cm | Throws a wide, warm pool of light beside a chair.
            Pendant Light | 44-175 | 20 cm; 30 cm; 45 cm | Hangs over a table on a cloth-covered cable.
            Wall Light | 31-98 | one arm; two arms; swing arm | Plugs in or wires in; the bracket fits both.
            Night Light | 9-28 | mains; battery; rechargeable | Wakes at dusk and sleeps at dawn by itself."""),
    ),
    Shelf(
        ("Home", "Bedding"),
        "BE",
        CLOTHS,
        ("weave", "stitching", "zip", "colour"),
        "Machine wash at 40 degrees; tumble dry on low.",
        _kinds("""
            Duvet Cover | 36-118 | single; double; king | Washed cotton that feels slept in from the first night.
            Wool Blanket | 54-165 | 130 x 170 cm; 150 x 200 cm; 180 x 220 cm | Woven from lambswool, warm without weight.
            Linen Pillowcase | 14-38 | 50 x 75 cm; 50 x 90 cm; 65 x 65 cm | Cool in summer, dry in winter.
            Fitted Sheet | 19-64 | single; double; king | Deep corners hold on to thick mattresses.
            Quilted Throw | 42-120 | 120 x 150 cm; 150 x 180 cm; 200 x 220 cm | Hand-guided stitching in long, uneven rows."""),
    ),
    Shelf(
        ("Home", "Storage"),
        "ST",
        WOODS,
        ("drawer", "joint", "lid", "finish"),
        "Wipe with a damp cloth.",
        _kinds("""
            Bookcase | 79-290 | 3 shelves; 4 shelves; 5 shelves | Solid shelves that do not sag under hardbacks.
            Storage Box | 12-46 | 5 l; 12 l; 30 l | Stacks with its lid on and nests with it off.
            Coat Rack | 24-88 | 4 hooks; 6 hooks; 8 hooks | Rounded pegs leave no bumps in collars.
            Shoe Bench | 58-165 | 60 cm; 80 cm; 100 cm | A place to sit, with room for two rows of shoes.
            Bedside Table | 49-180 | one drawer; two drawers; open shelf | Just the height of a mattress and a half."""),
    ),
    Shelf(
        ("Garden", "Hand Tools"),
        "HT",
        WOODS,
        ("blade", "handle", "spring", "weight"),
        "Clean after use and hang up dry.",
        _kinds("""
            Garden Fork | 26-74 | child; border; full size | Square tines go through clay without bending.
            Secateurs | 18-69 | small hand; medium hand; large hand | A bypass cut that heals cleanly, up to two centimetres.
            Hand Trowel | 8-29 | narrow; broad; extra long | Stamped with a depth scale for bulbs.
            Leaf Rake | 17-48 | 35 cm; 45 cm; 60 cm | Springy teeth gather leaves and leave the moss.
            Pruning Saw | 21-57 | 18 cm; 24 cm; 33 cm | Cuts on the pull, so the thin blade never buckles."""),
    ),
    Shelf(
        ("Garden", "Pots & Planters"),
        "PL",
        ("Terracotta", "Slate Grey", "Sage", "Chalk White", "Rusted Steel", "Cobalt"),
        ("glaze", "rim", "drainage", "saucer"),
        "Frost-proof to minus fifteen degrees.",
        _kinds("""
            Plant Pot | 7-42 | 12 cm; 18 cm; 25 cm; 35 cm | Thick walls keep roots cool at noon.
            Window Box | 19-58 | 45 cm; 60 cm; 80 cm | Sits on the sill and clips to the frame.
            Hanging Basket | 15-46 | 25 cm; 30 cm; 38 cm | Lined, with a reservoir that saves a watering a day.
            Raised Bed | 64-210 | 80 x 80 cm; 120 x 60 cm; 180 x 90 cm | High enough to weed without kneeling.
            Seed Tray | 5-21 | 12 cells; 24 cells; 40 cells | Each cell pushes out from below without hurting a root."""),
    ),
    Shelf(
        ("Garden", "Birds & Wildlife"),
        "BW",
        WOODS,
        ("roof", "perch", "hook", "entrance"),
        "Empty and brush out each autumn.",
        _kinds("""
            Bird Feeder | 11-44 | 2 ports; 4 ports; 6 ports | Holds mixed seed dry and keeps pigeons off.
            Nest Box | 16-52 | 28 mm hole; 32 mm hole; open front | The front swings out for cleaning.
            Bird Bath | 33-96 | tabletop; pedestal; hanging | Shallow enough for wrens, wide enough for thrushes.
            Insect Hotel | 14-48 | small; medium; large | Reeds, cones and drilled blocks for solitary bees.
            Hedgehog House | 39-95 | standard; deep; with tunnel | A dry bed for the winter, out of reach of dogs."""),
    ),
    Shelf(
        ("Outdoors", "Camping"),
        "CA",
        CLOTHS,
        ("zip", "poles", "seams", "bag"),
        "Dry fully before packing away.",
        _kinds("""
            Ridge Tent | 95-340 | 1 person; 2 person; 3 person; 4 person | Stands in eight minutes and in a gale.
            Sleeping Bag | 49-220 | summer; three-season; winter | A drawn hood and a baffle behind the zip keep the warmth in.
            Camping Stove | 27-88 | single burner; double burner; wind-proof | Boils a litre in under four minutes.
            Sleeping Mat | 31-130 | short; regular; wide | Insulates from frozen ground and rolls to the size of a loaf.
            Head Torch | 14-62 | 120 lumens; 250 lumens; 500 lumens | Red light for the map, white for the path."""),
    ),
    Shelf(
        ("Outdoors", "Cycling"),
        "CY",
        BRIGHTS,
        ("strap", "buckle", "mount", "padding"),
        "Check bolts and straps before each ride.",
        _kinds("""
            Cycle Helmet | 32-125 | 52-56 cm; 55-59 cm; 58-62 cm | Eighteen vents and a dial that one hand can turn.
            Pannier Bag | 38-112 | 12 l; 18 l; 25 l | Rolls shut against rain and clips off in a second.
            Bike Light | 12-58 | front; rear; pair | Seen from four hundred metres, by day too.
            Floor Pump | 22-64 | 8 bar; 11 bar; 14 bar | A steady foot and a gauge that can be read standing.
            Bicycle Bell | 6-24 | 40 mm; 55 mm; 65 mm | One clear note that carries over traffic."""),
    ),
    Shelf(
        ("Outdoors", "Walking"),
        "WA",
        CLOTHS,
        ("sole", "pocket", "strap", "lining"),
        "Brush off mud when dry; renew the wax each season.",
        _kinds("""
            Day Rucksack | 36-128 | 15 l; 22 l; 30 l | The back panel stands away, so that air can pass.
            Walking Poles | 28-105 | fixed; folding; telescopic | Cork grips and tips that bite on rock.
            Rain Jacket | 58-210 | S; M; L; XL | Taped seams, and a hood with a peak that stays put.
            Vacuum Flask | 15-48 | 0.35 l; 0.5 l; 0.75 l; 1.0 l | Hot for twelve hours, cold for a day.
            Wool Socks | 9-27 | 36-39; 40-43; 44-47 | Cushioned at heel and toe, thin over the instep."""),
    ),
    Shelf(
        ("Office", "Writing"),
        "WR",
        METALS,
        ("nib", "clip", "ink", "cap"),
        "Flush with water when changing inks.",
        _kinds("""
            Fountain Pen | 24-145 | extra fine; fine; medium; broad | Balanced to write without pressure for pages on end.
            Mechanical Pencil | 9-38 | 0.3 mm; 0.5 mm; 0.7 mm; 0.9 mm | The sleeve retracts, so that it can live in a pocket.
            Rollerball Pen | 12-54 | fine; medium; broad | Writes at once, even after a month in a drawer.
            Pencil Sharpener | 4-26 | one hole; two holes; crank | A long point that does not snap.
            Pen Case | 11-46 | 2 pens; 4 pens; 12 pens | Each pen has a loop of its own."""),
    ),
    Shelf(
        ("Office", "Paper"),
        "PA",
        CLOTHS,
        ("paper", "binding", "cover", "ruling"),
        "Acid-free paper from managed forests.",
        _kinds("""
            Hardback Notebook | 8-32 | A6; A5; A4 | Lies flat at every page; the last sixteen tear out.
            Sketchbook | 10-44 | A5; A4; A3 | Heavy cartridge paper that takes a light wash.
            Desk Planner | 12-36 | weekly; monthly; undated | One spread a week, with a margin for what came up.
            Letter Set | 9-29 | 10 sheets; 20 sheets; 40 sheets | Lined envelopes, and a blotter to go with them.
            Photo Album | 19-66 | 50 photos; 100 photos; 200 photos | Thick leaves between sheets of glassine."""),
    ),
    Shelf(
        ("Office", "Desk"),
        "DE",
        WOODS,
        ("surface", "hinge", "feet", "edge"),
        "Wipe with a damp cloth; wax once a year.",
        _kinds("""
            Laptop Stand | 24-92 | low; tall; folding | Raises the screen to the eyes and the keyboard off the heat.
            Letter Tray | 16-54 | one tier; two tiers; three tiers | Paper goes in from either side.
            Monitor Shelf | 29-105 | 50 cm; 70 cm; 100 cm | Room below for a keyboard that is not needed now.
            Pen Tray | 9-34 | 3 grooves; 5 grooves; with lid | Keeps what rolls from rolling.
            Footrest | 27-78 | flat; tilting; rocking | Takes the weight off the knees in long meetings."""),
    ),
    Shelf(
        ("Toys", "Building"),
        "BU",
        BRIGHTS,
        ("pieces", "fit", "box", "instructions"),
        "Suitable from three years.",
        _kinds("""
            Wooden Blocks | 16-58 | 40 pieces; 80 pieces; 120 pieces | Sanded smooth and cut to one measure, so that towers stand.
            Marble Run | 26-94 | 45 pieces; 80 pieces; 130 pieces | Curves, funnels and a bell at the end.
            Magnetic Tiles | 29-115 | 32 pieces; 60 pieces; 100 pieces | Snap together on any side and fold flat into houses.
            Train Set | 34-130 | oval; figure of eight; two loops | Couples with magnets and runs by hand.
            Crane Kit | 22-66 | 90 parts; 160 parts; 240 parts | Winds up a real load with a real pulley."""),
    ),
    Shelf(
        ("Toys", "Games"),
        "GA",
        WOODS,
        ("pieces", "rules", "board", "box"),
        "Two to four players.",
        _kinds("""
            Chess Set | 24-135 | 30 cm; 38 cm; 45 cm | Weighted pieces on a board that folds over them.
            Backgammon Set | 32-118 | travel; 38 cm; 48 cm | Cork playing field, quiet dice.
            Domino Set | 11-42 | double six; double nine; double twelve | In a sliding box that doubles as a rack.
            Solitaire Board | 15-48 | 33 holes; 37 holes; 41 holes | Played with glass marbles, a groove for those taken.
            Stacking Tower | 13-39 | 48 blocks; 54 blocks; 60 blocks | No two blocks quite alike, which is the point."""),
    ),
    Shelf(
        ("Toys", "Outdoor Play"),
        "OP",
        BRIGHTS,
        ("string", "grip", "frame", "colour"),
        "For use under the eyes of an adult.",
        _kinds("""
            Kite | 14-72 | diamond; delta; box | Lifts in a light breeze and forgives beginners.
            Skipping Rope | 6-22 | 2.1 m; 2.6 m; 5 m | Beads keep the arc round and the rhythm audible.
            Balance Bike | 59-160 | 10 inch; 12 inch; 14 inch | Learns to steer first and to pedal later.
            Sand Set | 9-32 | 4 parts; 7 parts; 11 parts | Sieve, spade and moulds in a net bag.
            Garden Swing | 38-125 | bucket seat; flat seat; nest | Hangs from a bough or a beam; ropes are included."""),
    ),
    Shelf(
        ("Music", "Strings"),
        "SG",
        ("Spruce", "Cedar", "Mahogany", "Maple", "Sunburst", "Rosewood"),
        ("action", "neck", "tuners", "tone"),
        "Keep at 45 to 55 percent humidity.",
        _kinds("""
            Ukulele | 38-165 | soprano; concert; tenor; baritone | Bright, in tune up the neck, and easy on soft fingers.
            Classical Guitar | 98-420 | half size; three quarter; full size | A wide neck and nylon strings for first lessons and later ones.
            Violin | 120-480 | quarter; half; three quarter; full size | Set up with a good bridge, a bow and rosin.
            Mandolin | 110-360 | A style; F style; travel | Cuts through a session without shouting.
            Lap Harp | 84-290 | 15 strings; 19 strings; 22 strings | Plays from sheets that slide under the strings."""),
    ),
    Shelf(
        ("Music", "Percussion"),
        "PE",
        BRIGHTS,
        ("skin", "rim", "tone", "stand"),
        "Loosen the skins before a long rest.",
        _kinds("""
            Cajon | 62-190 | junior; standard; deep | Snares behind the plate can be turned off.
            Hand Drum | 24-98 | 8 inch; 10 inch; 14 inch | A goatskin head with a warm, short note.
            Tambourine | 11-42 | 6 inch; 8 inch; 10 inch | Two rows of jingles that speak at a touch.
            Glockenspiel | 18-76 | 8 notes; 15 notes; 25 notes | Tuned steel bars, with beaters for loud and soft.
            Shaker Pair | 5-19 | soft; medium; loud | Fills that stay in time."""),
    ),
    Shelf(
        ("Music", "Accessories"),
        "AC",
        METALS,
        ("clamp", "screen", "legs", "battery"),
        "Store in the pouch supplied.",
        _kinds("""
            Music Stand | 16-68 | folding; orchestral; tabletop | Holds a full score and does not nod.
            Metronome | 15-74 | pendulum; clip-on; pocket | Beats from forty to two hundred and eight.
            Clip-On Tuner | 9-34 | chromatic; guitar; violin | Feels the note through the wood, in a noisy room too.
            Instrument Stand | 13-48 | small; medium; large | Padded where it touches the lacquer.
            String Winder | 4-17 | plain; with cutter; electric | Three turns a second, and a notch for bridge pins."""),
    ),
)  # fmt: skip

EXTRAS = (
    "a cotton storage bag", "a printed care card", "a spare set of screws", "a wall bracket", "a cleaning brush",
    "a small tin of wax", "a carrying strap", "a cardboard gift box", "a repair patch", "a paper template", "two felt pads",
    "a folding ruler", "a label holder", "a hanging loop",
)  # fmt: skip
ORIGINS = ("Portugal", "Poland", "Japan", "Sweden", "Italy", "Vietnam", "Mexico", "Canada", "Estonia", "Spain")

PRAISE = (
    "is better than I dared to hope", "is beautifully made", "has not given me a moment's trouble", "feels solid",
    "does exactly what it should", "still looks new after a year", "is a pleasure to use", "surprised even my neighbour",
)  # fmt: skip
SHRUGS = (
    "is all right for the money", "could be a little better", "took some getting used to", "is neither good nor bad",
    "is fine once you have adjusted it", "is plainer than in the picture",
)  # fmt: skip
COMPLAINTS = (
    "came loose within a week", "was scratched when it arrived", "broke on the second day", "feels cheap",
    "does not fit properly", "began to rattle", "smelled of glue", "is much smaller than described",
)  # fmt: skip
REASONS = (
    "Bought for my daughter's first flat.", "A present for my father, who is hard to please.", "We use it every day.",
    "I had an older one for ten years before this.", "Ordered after reading the other reviews.", "Needed one in a hurry.",
    "It lives in our holiday cottage.", "My third order from this shop.", "For the village school.",
    "Chosen for its size.", "Replaces one that my brother borrowed and lost.", "Bought two, kept both.",
)  # fmt: skip
ENDINGS = {
    5: ("I would buy it again tomorrow.", "Worth every penny.", "Five stars without a second thought."),
    4: ("One star off for the wrapping.", "Very nearly perfect.", "Recommended with a small reservation."),
    3: ("Decent, no more.", "I am in two minds about it.", "It will do for now."),
    2: ("I expected more at this price.", "Think twice.", "The refund was quick, at least."),
    1: ("It went straight back.", "Do not waste your money.", "I am still waiting for an answer from the shop."),
}
HEADLINES = {
    5: ("Delighted", "Just right", "A small joy", "Cannot fault it", "Our favourite", "Made to last"),
    4: ("Very good", "Nearly there", "Solid choice", "Happy on the whole", "Good, with one flaw", "Does it well"),
    3: ("It is all right", "Middling", "Fair for the price", "Mixed feelings", "Average", "So-so"),
    2: ("Disappointed", "Not for me", "Below what I hoped", "Flimsy", "Could not warm to it", "Poor finish"),
    1: ("Sent it back", "Fell apart", "Avoid", "A mistake", "Never again", "Useless"),
}

FIRST_NAMES = (
    "Ada", "Amir", "Anneke", "Aroha", "Beatriz", "Bram", "Caleb", "Chidi", "Dalia", "Dmitri", "Edith", "Elif", "Farid",
    "Fiona", "Gareth", "Greta", "Hana", "Hugo", "Imani", "Ines", "Jonas", "Joyce", "Kaito", "Keira", "Lars", "Leila",
    "Mabel", "Mateo", "Nadia", "Noel", "Olga", "Oscar", "Petra", "Priya", "Quentin", "Rosa", "Samir", "Sofia", "Tariq",
    "Thea", "Ugo", "Una", "Viktor", "Wanda", "Xenia", "Yusuf", "Zelda", "Zoran",
)  # fmt: skip
LAST_NAMES = (
    "Abbott", "Achebe", "Baptiste", "Brandt", "Calloway", "Castellano", "Dahl", "Donovan", "Eriksen", "Fairweather",
    "Fujita", "Galloway", "Haddad", "Hollis", "Ibarra", "Jansen", "Kowalski", "Lindqvist", "Marlowe", "Mbeki", "Novak",
    "Okafor", "Pemberton", "Quispe", "Ramaswamy", "Sandoval", "Takahashi", "Underhill", "Vasquez", "Whitlock", "Yilmaz",
    "Zhang",
)  # fmt: skip
STREETS = (
    "Alder Lane", "Bridge Street", "Canal Row", "Dovecote Road", "Elm Avenue", "Ferry Street", "Granary Lane", "Hill Road",
    "Ironworks Street", "Juniper Way", "Kiln Lane", "Lighthouse Road", "Mill Street", "North Parade", "Orchard Close",
    "Pond Lane", "Quarry Road", "River Walk", "Station Street", "Tannery Row",
)  # fmt: skip
PLACES = (
    ("Portland", "OR", "972"), ("Burlington", "VT", "054"), ("Savannah", "GA", "314"), ("Duluth", "MN", "558"),
    ("Santa Fe", "NM", "875"), ("Boise", "ID", "837"), ("Providence", "RI", "029"), ("Madison", "WI", "537"),
    ("Tucson", "AZ", "857"), ("Asheville", "NC", "288"), ("Eugene", "OR", "974"), ("Lancaster", "PA", "176"),
    ("Galveston", "TX", "775"), ("Bangor", "ME", "044"), ("Dubuque", "IA", "520"), ("Spokane", "WA", "992"),
)  # fmt: skip
"""(city, state, first three digits of its ZIP codes)."""
