#!/usr/bin/env python3
"""Deterministic generator of short children's stories.

Every word the generator can print is in this file. It reads no other text, so
the stories carry no third-party licence. A story is fully determined by its
integer seed: story(seed) always returns the same string.

    python make_stories.py --count 3                 # print three stories
    python make_stories.py --start 100 --count 1000 --out stories.txt

Template syntax, used all through this file:

    [a|b|c]   one of the alternatives, chosen at random; may be nested
    {key}     value of a slot; {Key} is the same value with a capital letter
    {a key}   the value with "a" or "an" in front; {A key} with a capital
"""

import argparse
import random
import re
import sys

# --------------------------------------------------------------------------
# Vocabulary
# --------------------------------------------------------------------------

GIRL_NAMES = (
    "Mia Lily Anna Rosa Ella Nora Ivy Clara Ruby Hazel Luna Daisy Maya Tess "
    "Poppy Sara Emma Lucy Zoe Willow Molly Amy Bella Freya Nina Elsie Kate "
    "Marigold Pearl Juno Alice Sophie Grace Olive Rosie Holly Ada Eva Lola "
    "Nelly Penny Jenny Sally Annie Iris Violet Heidi Greta Lena Mina Nadia Amina "
    "Leila Zara Sana Yuki Mei Priya Ines Carmen"
).split()
BOY_NAMES = (
    "Tom Ben Leo Max Sam Finn Oscar Theo Jack Hugo Milo Pip Otto Felix Noah "
    "Charlie Bruno Toby Arlo Oliver Jasper Henry Rufus Alfie Eli Barney Robin "
    "Ned Basil Kit George Peter Paul David Daniel Simon Luke Jake Billy Bobby "
    "Teddy Freddie Archie Louis Hector Walter Victor Anton Emil Lars Omar Ali "
    "Karim Ravi Arun Kenji Hiro Mateo Diego Marco Luca"
).split()

ANIMALS = (
    "rabbit fox bear mouse hedgehog squirrel duck frog turtle kitten puppy "
    "badger otter deer mole beaver lamb pony goat owl penguin piglet raccoon "
    "sparrow"
).split()
FLYERS = {"owl", "sparrow", "duck"}
SWIMMERS = {"duck", "frog", "turtle", "otter", "beaver", "penguin"}

SIZES = ["little", "small", "young"]
TRAITS = [
    "kind", "brave", "curious", "cheerful", "gentle", "clever", "quiet",
    "friendly", "shy", "playful", "thoughtful", "lively",
]
LOVES = [
    "to sing", "to dance", "to read stories", "to paint pictures",
    "to climb trees", "to watch the clouds", "to count the stars",
    "to collect shiny stones", "to pick flowers", "to explore",
    "to play in the rain", "to bake cakes", "to run through the grass",
    "to listen to the birds", "to make up games", "to build things",
]
COLOURS = ["red", "blue", "green", "yellow", "purple", "orange", "silver", "golden", "white"]
TOYS = [
    "ball", "kite", "hat", "scarf", "teddy bear", "drum", "whistle", "bell",
    "button", "ribbon", "marble", "toy boat", "lantern", "book", "mitten",
    "umbrella", "spinning top", "paper plane",
]
FLOATY = ["kite", "balloon", "hat", "scarf", "paper plane", "ribbon"]
FOODS = [
    "apples", "berries", "cookies", "nuts", "pears", "carrots", "cherries",
    "pancakes", "muffins", "plums",
]
FLOWERS = ["sunflower", "rose", "tulip", "pumpkin", "strawberry plant", "bean plant", "apple tree"]
BABIES = [
    ("baby bird", "nest"), ("duckling", "pond"), ("baby rabbit", "burrow"),
    ("kitten", "barn"), ("puppy", "farm"), ("lamb", "field"),
    ("baby squirrel", "tree"), ("baby turtle", "lake"), ("fawn", "glade"),
]

# Each entry: name of the place, phrase after "lived", phrase for "home", spots where things may be.
PLACES = [
    ("village", "in a small village by the sea", "cottage",
     ["on the beach", "behind the fishing boats", "beside the lighthouse", "among the rocks",
      "under the wooden pier", "next to the harbour wall"]),
    ("forest", "in a quiet forest", "cottage",
     ["under the old oak tree", "behind the mossy rocks", "beside the stream", "among the ferns",
      "near a hollow log", "near the blackberry bushes"]),
    ("farm", "on a farm at the top of a hill", "farmhouse",
     ["behind the barn", "behind the haystack", "beside the duck pond", "under the apple tree",
      "near the henhouse", "in the vegetable garden"]),
    ("village", "in a village in the mountains", "cabin",
     ["by the waterfall", "behind the woodpile", "beside the stone bridge", "under the tall pine trees",
      "near the old mill", "along the winding path"]),
    ("town", "in a busy little town", "house",
     ["in the park", "behind the bakery", "under the bench", "beside the fountain",
      "in front of the library", "near the market"]),
    ("valley", "in a green valley beside a river", "cottage",
     ["by the river", "under the wooden bridge", "behind the willow tree", "among the reeds",
      "in the long grass", "near the stepping stones"]),
    ("meadow", "at the edge of a sunny meadow", "house",
     ["among the daisies", "under the hedge", "behind the garden gate", "beside the pond",
      "in the tall grass", "near the beehives"]),
    ("village", "in a snowy village far to the north", "cabin",
     ["beside the frozen lake", "behind the big snowdrift", "under the pine trees", "near the sledge",
      "on the icy path", "next to the snowman"]),
    ("island", "on a tiny island in the middle of a lake", "hut",
     ["on the sandy shore", "behind the tall rocks", "under the palm tree", "beside the little boat",
      "among the shells", "near the wooden jetty"]),
]

MORALS = {
    "help": ["that it is always good to ask for help", "that friends make hard things easier",
             "that even a small friend can be a big help", "that helping others feels wonderful"],
    "kind": ["that a little kindness can go a long way", "that being kind makes everyone happy",
             "that kind hearts always find good friends", "that kindness comes back to you"],
    "brave": ["that being brave means trying even when you are afraid",
              "that everyone is afraid sometimes", "that brave hearts can be small"],
    "share": ["that sharing makes everything taste better", "that sharing is more fun than keeping",
              "that good things are better together"],
    "try": ["that you should never give up", "that practice makes hard things easy",
            "that it is all right to fail and try again", "that every mistake teaches you something"],
    "honest": ["that it is always best to tell the truth", "that telling the truth takes courage",
               "that honest words make a heart feel light"],
    "patient": ["that good things take time", "that a little patience brings a big reward",
                "that waiting can be worth it"],
    "again": ["that you should never give up", "that you can always start again",
              "that it helps to stop and think"],
    "see": ["that there is joy in every day", "that there is beauty all around us",
            "that a bad start can have a happy end"],
    "proud": ["that it is better to be kind than to be the best", "that nobody likes a boast",
              "that a good friend is better than a prize"],
    "wise": ["to be careful what you wish for", "to be thankful for what you have",
             "that the best things are often right beside you"],
    "home": ["that there is no place like home", "that home is where you are loved",
             "that the best part of any adventure is coming home"],
    "friend": ["that a friend is the best treasure of all", "that friends are worth more than toys",
               "that saying sorry can mend a friendship", "that a true friend is always there"],
}


def article(phrase):
    word = phrase.split()[0].lower()
    return "an" if word[0] in "aeiou" and not word.startswith(("uni", "use")) else "a"


def cap(text):
    return text[:1].upper() + text[1:]


class Story:
    """The state of one story. Expands templates with that state."""

    def __init__(self, seed):
        self.r = random.Random(seed * 2654435761 % (1 << 61) + seed)
        self.v = {}
        self.friend_known = False
        self.hero_known = False
        self.first_body = True
        self.paras = []
        self.moods = []
        self.setup()

    # ---- expansion -------------------------------------------------------

    def lookup(self, key):
        if key[:2] in ("a ", "A "):
            value = self.lookup(key[2:])
            word = article(value)
            return (cap(word) if key[0] == "A" else word) + " " + value
        if key == "hero":
            return self.hero_phrase()
        if key == "Hero":
            return cap(self.hero_phrase())
        if key in ("fr", "Fr"):
            text = self.friend_phrase()
            return cap(text) if key == "Fr" else text
        if key in ("day", "Day"):
            return cap(self.day()) if key == "Day" else self.day()
        if key in self.v:
            value = self.v[key]
        else:
            low = key[0].lower() + key[1:]
            value = cap(self.expand(self.v[low]))
        return self.expand(value)

    def expand(self, t):
        out, i, n = [], 0, len(t)
        while i < n:
            c = t[i]
            if c == "[":
                depth, j, parts, start = 1, i + 1, [], i + 1
                while True:
                    d = t[j]
                    if d == "[":
                        depth += 1
                    elif d == "]":
                        depth -= 1
                        if depth == 0:
                            parts.append(t[start:j])
                            break
                    elif d == "|" and depth == 1:
                        parts.append(t[start:j])
                        start = j + 1
                    j += 1
                out.append(self.expand(self.r.choice(parts)))
                i = j + 1
            elif c == "{":
                j = t.index("}", i)
                out.append(self.lookup(t[i + 1:j]))
                i = j + 1
            else:
                j = i
                while j < n and t[j] not in "[{":
                    j += 1
                out.append(t[i:j])
                i = j
        return "".join(out)

    def p(self, *templates):
        """Adds one paragraph made of the given sentences."""
        self.paras.append(" ".join(s for s in (self.expand(t).strip() for t in templates) if s))

    def some(self, options, k):
        return self.r.sample(options, k)

    def maybe(self, template, chance=0.5):
        return template if self.r.random() < chance else ""

    def set(self, **kw):
        self.v.update(kw)

    # ---- characters ------------------------------------------------------

    def pronouns(self, prefix, girl):
        words = ("she", "her", "her", "herself") if girl else ("he", "him", "his", "himself")
        for k, w in zip(("he", "him", "his", "himself"), words):
            self.v[prefix + k] = w

    def made_up_name(self, girl):
        """Returns an unusual name. A few heroes have such a name, so that the model learns to copy names."""
        name = "".join(self.r.choice("b d f g k l m n p r s t v z br fl gr tr".split()) + self.r.choice("aeiou")
                       for _ in range(2))
        return cap(name + (self.r.choice(["la", "na", "ra", "lia"]) if girl else self.r.choice(["n", "l", "ro", "x", "s"])))

    def setup(self):
        r = self.r
        girl = r.random() < 0.5
        self.human = r.random() < 0.4
        name = r.choice(GIRL_NAMES if girl else BOY_NAMES)
        if r.random() < 0.04:
            name = self.made_up_name(girl)
        self.v["N"] = name
        self.pronouns("", girl)
        self.v["kind"] = ("girl" if girl else "boy") if self.human else r.choice(ANIMALS)
        self.v["size"] = r.choice(SIZES)
        self.v["trait"] = r.choice(TRAITS)
        self.v["love"] = r.choice(LOVES)

        fgirl = (not girl) if r.random() < 0.8 else girl
        fname = r.choice([x for x in (GIRL_NAMES if fgirl else BOY_NAMES) if x != name])
        self.v["F"] = fname
        self.pronouns("f", fgirl)
        fkind = r.choice([a for a in ANIMALS if a != self.v["kind"]])
        self.v["fkind"] = fkind
        self.v["ftrait"] = r.choice([t for t in TRAITS if t != self.v["trait"]])

        elder, egirl = r.choice([("mother", True), ("father", False),
                                 ("grandmother", True), ("grandfather", False)])
        self.v["elder"] = elder
        self.pronouns("e", egirl)

        place = r.choice(PLACES)
        self.v["place"], self.v["where"], self.v["home"] = place[0], place[1], place[2]
        self.v["inplace"] = ("on the " if place[0] in ("farm", "island") else "in the ") + place[0]
        self.spots = place[3]
        self.v["colour"] = r.choice(COLOURS)
        self.v["food"] = r.choice(FOODS)

    def hero_phrase(self):
        if self.hero_known:
            return self.v["N"]
        self.hero_known = True
        return self.expand("a [{size}|{trait}|{trait} {size}] {kind} named {N}")

    def friend_phrase(self):
        if self.friend_known:
            return self.v["F"]
        self.friend_known = True
        return self.expand("{his} friend {F} the {fkind}")

    def day(self):
        if self.first_body:
            return self.expand(
                "[one day|one day|one morning|one sunny morning|one afternoon|one bright morning|"
                "one fine day|one cool morning|one warm afternoon]")
        return self.expand("[the next day|the next morning|a few days later|one week later|"
                           "not long after that|the day after that]")

    # ---- frame -----------------------------------------------------------

    def intro(self):
        friend = self.r.random() < 0.45
        who = "a [{size}|{trait} {size}|{trait}] {kind} named {N}"
        first = self.r.choice([
            "Once upon a time, there was " + who + ". {He} lived {where}.",
            "Once upon a time, there was " + who + " who lived {where}.",
            "Once upon a time, {where}, there lived " + who + ".",
            "Once upon a time, " + who + " lived {where}.",
            "Once there was " + who + " who lived {where}.",
            "Long ago, {where}, there lived " + who + ".",
            "There once was " + who + ". {He} lived {where}.",
            "{Where}, there lived " + who + ".",
            "{Where} lived " + who + ".",
            "{N} was " + who.replace(" named {N}", "") + ". {He} lived {where}.",
        ])
        self.hero_known = True
        more = []
        if self.r.random() < 0.75:
            more.append(self.r.choice([
                "{N} loved {love}.",
                "More than anything, {N} loved {love}.",
                "Every day, {he} liked {love}.",
                "{He} loved {love}, and {he} was always [happy|smiling|busy].",
                "{N} shared a [cosy|tiny|warm|little] {home} with {his} {elder}, and {he} loved {love}.",
            ]))
        if friend:
            more.append(self.r.choice([
                "{His} best friend was {a fkind} named {F}.",
                "{He} had a good friend, {a ftrait} {fkind} named {F}.",
                "{N} and {his} best friend, {a fkind} named {F}, played together every day.",
            ]))
            self.friend_known = True
        self.p(first, *more)

    def ending(self):
        mood = self.r.choice(self.moods)
        lesson = self.r.choice(MORALS[mood])
        self.v["lesson"] = lesson
        style = self.r.random()
        if style < 0.4:
            self.p("[From that day on|After that day], {N} [always remembered|never forgot] {lesson}."
                   + self.maybe(" The end.", 0.2))
        elif style < 0.6:
            self.p("That [night|evening], {N} [lay in bed and smiled|fell asleep with a smile|went to bed happy]. "
                   "{He} had learned {lesson}.")
        elif style < 0.75:
            self.p("\"[Today|Now] I [have learned|know] {lesson},\" said {N}. "
                   "And {his} {elder} [gave {him} a big hug.|smiled and kissed {him} good night.|said, \"That is very true.\"]")
        elif style < 0.9 and self.friend_known:
            self.p("And from that day on, {N} and {F} [were the best of friends|played together every day|"
                   "were never lonely again|always helped each other].")
        else:
            self.p("[And they all lived happily ever after.|It had been a wonderful day.|"
                   "It was a day that {N} would never forget.|And that was the happiest day of all.]")

    def request(self):
        """Returns a line that asks for this story. Some stories begin with such a line."""
        return self.expand(
            "[Tell me a story about|Write a story about|Please tell me a story about|Can you tell me a story about] "
            "[{a kind} named {N}|{N} the {kind}|{a kind}|{a kind} named {N} and {a topic}|{a kind} and {a topic}]")

    def build(self):
        r = self.r
        n = r.random()
        count = 1 if n < 0.72 else 2 if n < 0.91 else 3 if n < 0.97 else 4
        if r.random() < 0.78:
            self.intro()
        # In the plots `neighbour` and `school` the friend appears for the first time. So these
        # plots must come first, and the opening must not have presented the friend.
        late = [p for p in PLOTS if p not in (neighbour, school)]
        first = r.choice(late if self.friend_known else PLOTS)
        plots = [first] + self.some([p for p in late if p is not first], count - 1)
        self.v["topic"] = plots[0].topic
        for k, plot in enumerate(plots):
            self.first_body = k == 0
            plot(self)
        self.ending()
        text = re.sub(r"\b([Aa]) (?=[aeiou](?!ni|se))", r"\1n ", "\n\n".join(self.paras))
        if r.random() < 0.12:
            q = self.request()
            text = q + ("?" if q.startswith("Can") else ".") + "\n\n" + text
        return text


PLOTS = []


def plot(topic):
    def wrap(f):
        f.topic = topic
        PLOTS.append(f)
        return f
    return wrap


# --------------------------------------------------------------------------
# Plots. Each one adds two to five paragraphs.
# --------------------------------------------------------------------------

@plot("lost toy")
def lost_toy(s):
    a, b, c = s.some(s.spots, 3)
    s.set(toy=s.r.choice(TOYS), s1=a, s2=b, s3=c)
    s.p("{Day}, {hero} [could not find|lost] {his} {colour} {toy}. "
        "[{He} had looked everywhere in the house.|It was {his} favourite thing in the whole world.|"
        "It had been a present from {his} {elder}.]",
        "[{N} felt very sad.|{N} wanted to cry.|\"Oh no! Where can it be?\" {he} said.]")
    if s.r.random() < 0.75:
        s.p("{He} went to ask {fr}. \"Have you seen my {colour} {toy}?\" asked {N}.",
            "\"No, [I have not|I am sorry],\" said {F}. \"But [I will help you look for it|we can look for it together]!\"")
        s.p("First, they looked {s1}, but the {toy} was not there. Then they looked {s2}. "
            "[There was only an old leaf.|It was not there either.|They found nothing but a snail.]",
            "At last, they looked {s3}, and [{F} began to jump up and down|{F} gave a happy shout].",
            "\"[Look|Here it is|I found it], {N}!\" said {F}. [There was|And there was] the {colour} {toy}!")
        s.p("{N} [hugged|thanked] {F}. \"Thank you [so much|for helping me|for being such a good friend],\" {he} said. "
            "Then they [played until the sun went down|walked home together|sat in the sun and laughed].")
        s.moods += ["help", "friend"]
    else:
        s.p("{He} looked {s1}, but the {toy} was not there. {He} looked {s2}, but it was not there either. "
            "Then {he} [sat down and thought|closed {his} eyes and tried to remember]. "
            "\"I [know|remember]!\" said {N}. \"I was playing {s3} yesterday!\"")
        s.p("{He} ran as fast as {he} could. And there, {s3}, was the {colour} {toy}! "
            "{N} [picked it up and held it tight|laughed and danced around]. "
            "\"I will take better care of you,\" {he} said.")
        s.moods += ["again"]


@plot("lost baby animal")
def lost_baby(s):
    baby, nest = s.r.choice(BABIES)
    s.set(baby=baby, nest=nest, spot=s.r.choice(s.spots))
    s.p("{Day}, {hero} was [walking|playing] {spot} when {he} heard a [tiny|small|soft] sound. "
        "It was a little {baby}, and it was [crying|shaking|all alone].",
        "\"[What is wrong|Why are you sad|Are you lost], little one?\" asked {N}.",
        "\"I [cannot find|have lost] my mother,\" said the {baby}.")
    s.p("\"Do not [worry|cry],\" said {N}. \"I will help you [find her|get home].\" "
        "{He} [wrapped the {baby} in {his} scarf|held the {baby} gently|gave the {baby} some water].")
    if s.r.random() < 0.6:
        s.p("They asked {fr}. \"I [saw|heard] a mother calling near the {nest},\" said {F}. \"[Follow me|Come with me]!\"",
            "So {N}, {F}, and the little {baby} [walked|hurried] to the {nest} together.")
    else:
        s.p("They walked [up the hill and down again|along the path|past the tall trees] until they came to the {nest}. "
            "\"[Listen|Look]!\" said {N}. \"[Somebody is calling you|I think I see your mother]!\"")
    s.p("The mother was [waiting there|looking everywhere for her baby]. When she saw them, she [cried with joy|was so happy]. "
        "\"Thank you for [bringing my baby home|taking care of my little one],\" she said.",
        "The {baby} [waved goodbye|gave {N} a kiss on the nose], and {N} [felt warm inside|smiled all the way home].")
    s.moods += ["kind", "home", "help"]


@plot("dark night")
def afraid(s):
    fear, thing, fix = s.r.choice([
        ("the dark", "a dark shadow on the wall", "a small lamp"),
        ("thunder", "a loud clap of thunder", "a warm blanket"),
        ("the wind", "a strange sound at the window", "a warm blanket"),
        ("the dark", "a strange noise under the bed", "a little lantern"),
    ])
    s.set(fear=fear, thing=thing, fix=fix, fixw=fix.split(" ", 1)[1])
    s.p("[There was one thing that {N} did not like.|{N} had a secret.] {He} was afraid of {fear}. "
        if s.hero_known else "Once upon a time, there was {hero} who was afraid of {fear}. ",
        "[One night|Late one night|One stormy night], {he} " + ("saw" if "shadow" in thing else "heard") + " {thing}. "
        "{N} [hid under the blanket|pulled the blanket over {his} head|began to shake].")
    s.p("\"[Help|Please come]!\" called {N}. {His} {elder} came [quickly|at once] with {fix}. "
        "\"[What is the matter|What is wrong], {N}?\" {ehe} asked.",
        "\"I am afraid of {fear},\" said {N} in a [small|quiet] voice.")
    s.p("{His} {elder} sat down [on the bed|beside {him}]. \"[When I was little, I was afraid too|Everyone is afraid sometimes],\" {ehe} said. "
        "\"Let us " + ("look" if fear == "the dark" else "listen") + " together.\"",
        {"the dark": "So they looked, and it was only [an old coat on a chair|the cat|a branch outside the window]. ",
         "thunder": "So they listened, and they counted between the flash and the boom. The storm was moving far away. ",
         "the wind": "So they listened, and it was only [a branch tapping on the glass|the wind singing in the trees]. "}[fear]
        + "{N} [laughed|began to smile].")
    s.p("\"I am not afraid any more,\" said {N}. {He} [held the {fixw} close|put the {fixw} beside the bed] and "
        "[soon fell asleep|closed {his} eyes|slept until morning].")
    s.moods += ["brave"]


@plot("basket of food")
def sharing(s):
    s.set(spot=s.r.choice(s.spots))
    s.p("{Day}, {hero} had a [big|full] basket of {food}. [{His} {elder} had given it to {him}.|{He} had picked them all by {himself}.|They smelled so good.]"
        if s.v["food"] in ("apples", "berries", "nuts", "pears", "carrots", "cherries", "plums") else
        "{Day}, {hero} had a [big|full] basket of {food}. [{His} {elder} had made them.|They were still warm.|They smelled so good.]",
        "{He} sat down {spot} to eat them all.")
    s.p("Soon, {fr} came by. \"[Those {food} look lovely|What nice {food}]! May I have [one|some]?\" asked {F}.",
        "\"No,\" said {N}. \"They are [mine|all for me].\" {F} [looked at the ground|felt sad] and [walked away|went home].")
    s.p("{N} ate one, and then another. But [they did not taste very good|it was not much fun] all alone. "
        "{He} thought about {F}, and {he} felt [bad|sorry|sad].",
        "{He} picked up the basket and ran after {F}. \"I am sorry,\" said {N}. \"[Please have some|Let us share]. There are enough for both of us.\"")
    s.p("{F} [smiled|was happy again]. The two friends sat [side by side|in the sun] and ate the {food} together. "
        "[They were the best {food} in the world.|Now they tasted wonderful.]")
    s.moods += ["share", "share", "friend"]


@plot("hard lesson")
def learning(s):
    skill, doing, fail = s.r.choice([
        ("ride a bicycle", "riding", "fell into the grass"),
        ("skate on the ice", "skating", "slipped and fell"),
        ("whistle", "whistling", "made no sound at all"),
        ("fly a kite", "flying the kite", "watched the kite fall to the ground"),
        ("play the flute", "playing", "made a funny squeaking sound"),
        ("jump rope", "jumping", "got tangled in the rope"),
        ("juggle", "juggling", "dropped all the balls"),
        ("row a boat", "rowing", "went around in circles"),
        ("tie a bow", "tying bows", "made a big knot"),
    ])
    s.set(skill=skill, doing=doing, fail=fail)
    s.p("{Day}, {hero} [wanted to learn|decided to learn] how to {skill}. "
        "{He} had [seen the older children do it|watched {his} {elder} do it], and it looked [so easy|like so much fun].",
        "But when {he} tried, {he} {fail}. {He} tried again, and {he} {fail} once more.")
    s.p("\"[I will never learn|I cannot do it|It is too hard],\" said {N}, and a tear rolled down {his} cheek.",
        "Just then, {fr} [came by|walked over]. \"[Do not give up|Try again],\" said {F}. "
        "\"I could not do it at first either. [Go slowly|Take a deep breath|Take your time], and I will stay with you.\"")
    s.p("So {N} [took a deep breath|stood up] and tried again. [Every day|Day after day], {he} practised a little more. "
        "[The first day was hard, but the second day was better.|Little by little, it became easier.]",
        "Then, [one morning|at last], it worked! {N} was {doing} all by {himself}! "
        "\"[Look at me|I did it]!\" {he} shouted.")
    s.p("{F} [clapped and cheered|jumped for joy]. \"I knew you could do it,\" {fhe} said. {N} [felt very proud|had never been so proud].")
    s.moods += ["try", "try", "help"]


@plot("tree house")
def building(s):
    s.set(thing=s.r.choice(["tree house", "raft", "little bridge", "snow house", "sandcastle", "bird house"]))
    mat = {"tree house": "wood and rope", "raft": "logs and rope", "little bridge": "stones and planks",
           "snow house": "big blocks of snow", "sandcastle": "sand and shells", "bird house": "wood and nails"}[s.v["thing"]]
    s.set(mat=mat)
    s.p("{Day}, {hero} [had an idea|had a wonderful idea]. \"I will build a {thing}!\" {he} said. "
        "{He} [gathered|collected] {mat} and worked [all morning|all day].")
    s.p("But in the night, [a strong wind blew|a big storm came]. In the morning, the {thing} was [broken|gone|in pieces]. "
        "{N} [sat down and cried|was very sad]. \"All my work is gone,\" {he} said.")
    s.p("{Fr} heard {him} and came to see. \"[Do not be sad|Cheer up],\" said {F}. \"[If we work together, we can build it again|Together we can make an even better one].\"",
        "So they [started again|went to work]. {N} [carried the {mat}|held everything in place], and {F} [made it strong|put it all together]. "
        "[They sang while they worked.|They worked until the sun went down.|They stopped only to eat some {food}.]")
    s.p("[When it was finished|At last], the {thing} was [bigger and stronger|better] than before. "
        "\"[It is perfect|It is beautiful]!\" said {N}. \"I could not have done it without you.\"")
    s.moods += ["again", "help", "friend"]


@plot("windy day")
def stuck(s):
    s.set(toy=s.r.choice(FLOATY))
    s.p("{Day}, {hero} was playing outside with {his} {colour} {toy}. Suddenly, a [strong|big] wind [blew|came], "
        "and the {toy} flew up, up, up, and got stuck in a tall tree.",
        "\"Oh no! My {toy}!\" cried {N}.")
    s.p("{He} jumped, but {he} could not reach it. {He} [threw a stick|shook the tree], but the {toy} did not move. "
        "{He} tried to climb, but the branches were too [high|thin].")
    if s.v["fkind"] in FLYERS:
        s.p("Then {fr} [came along|flew by]. \"I can help,\" said {F}. {Fhe} [flapped {fhis} wings|spread {fhis} wings] and flew to the top of the tree. "
            "{Fhe} pulled at the {toy} until it came free.")
    elif s.v["fkind"] == "squirrel":
        s.p("Then {fr} came along. \"I can help,\" said {F}. {Fhe} ran up the tree, from branch to branch, until {fhe} reached the {toy}. "
            "{Fhe} pushed it, and it came free.")
    else:
        s.p("Then {fr} came along. \"[Let us think|I have an idea],\" said {F}. \"[You can stand on my back|We can use a ladder|We can use a long stick].\" "
            "They tried it together. {N} stretched [and stretched|as far as {he} could], until {he} touched the {toy} and pulled it free.")
    s.p("The {toy} [floated down|came down] [into the grass|to the ground]. \"[Hooray|We did it]!\" [they both shouted|cried {N}]. "
        "\"Thank you, {F}!\" {His} {toy} was [safe|as good as new], and they played with it together all afternoon.")
    s.moods += ["help", "friend"]


@plot("birthday present")
def birthday(s):
    gift, oops = s.r.choice([
        ("cake", "dropped it on the floor"), ("card", "spilled paint on it"), ("necklace of shells", "broke the string"),
        ("picture", "spilled water on it"), ("scarf", "tore a hole in it"), ("flower crown", "sat on it by accident"),
    ])
    s.set(gift=gift, oops=oops)
    known = s.friend_known
    s.p("{Day}, {hero} remembered that it was " + ("{F}'s birthday." if known else "the birthday of {fr}."),
        "\"I will make a {gift} for {F},\" said {N}. {He} worked [very hard|all morning], and the {gift} looked [lovely|beautiful].")
    s.p("But just before the party, {N} {oops}. \"Oh no! [Now it is ruined|What will I do now|The party is today]!\" {he} cried.",
        "{His} {elder} [came in|heard {him}]. \"[Do not worry|It is all right],\" said {his} {elder}. "
        "\"[A present does not have to be perfect|{F} will love it because it comes from you|It is the thought that counts].\"")
    s.p("So {N} [took the {gift}|put the {gift} in a box] and went to the party. {He} [felt shy|was nervous]. \"I am sorry, it is not perfect,\" {he} said.",
        "But {F} [smiled a big smile|laughed with joy]. \"You made this for me? [It is the best present of all|I love it]!\" {fhe} said.")
    s.p("They [sang songs|danced] and [ate cake|played games] until [the stars came out|it was time to go home].")
    s.moods += ["friend", "kind"]


@plot("tiny seed")
def garden(s):
    giver, they = s.r.choice([("{his} {elder}", "{ehe}"), ("an old woman", "she"), ("a kind farmer", "he")])
    s.set(plant=s.r.choice(FLOWERS), giver=giver, they=they)
    s.p("{Day}, {giver} gave {hero} a [tiny|small] seed.",
        "\"[Plant it|Put it in the ground] and take good care of it,\" {they} said.",
        "{N} dug a hole in the garden and put the seed inside.")
    s.p("Every [day|morning], {N} watered the seed. [One day went by, and then another.|{He} waited and waited.] But nothing happened. "
        "\"[Why does it not grow|When will it grow]?\" {he} asked.",
        "\"[Be patient|Wait a little longer],\" said {fr}. \"[The seed is sleeping|Good things take time]. It needs water and sun.\"")
    s.p("So {N} waited. {He} [sang to the seed|told the seed stories] and [pulled out the weeds|gave it water]. "
        "Then, one [sunny|warm] morning, {he} saw [something green|a tiny green leaf]! It grew [a little more each day|taller and taller].")
    s.p("By the end of summer, it was {a plant}, and it was [bigger than {N}|the most beautiful one {inplace}]. "
        "Everyone came to see it. {N} [smiled with pride|was very proud].")
    s.moods += ["patient"]


@plot("broken vase")
def honesty(s):
    s.set(thing=s.r.choice(["vase", "blue cup", "clay pot", "window", "teapot", "lamp", "mirror"]))
    s.p("{Day}, {hero} was [running|playing with a ball|dancing] in the house. {His} {elder} had said, \"Please [be careful|do not play in here].\" "
        "But {N} did not listen.",
        "Crash! The {thing} " + ("" if s.v["thing"] == "window" else "fell and ") + "broke into pieces.")
    s.p("{N} was [afraid|very scared]. {He} [hid behind the door|ran to {his} room|hid under the table]. "
        "When {his} {elder} came home, {ehe} saw the broken {thing}. \"[Who did this|What happened here]?\" {ehe} asked.")
    if s.r.random() < 0.5:
        s.p("\"It was the [cat|wind],\" said {N}. But {his} heart felt heavy, and {he} could not [eat {his} dinner|sleep|play].",
            "At last, {he} went to {his} {elder} and said, \"I am sorry. It was me. I broke the {thing}.\"")
    else:
        s.p("{N} wanted to say that it was not {him}. But {he} knew that would be [wrong|a lie]. "
            "{He} took a deep breath and said, \"It was me. I broke the {thing}. I am very sorry.\"")
    s.p("{His} {elder} [hugged {him}|took {his} hand]. \"[Thank you for telling the truth|I am proud of you for telling me|It was brave to tell the truth],\" {ehe} said. "
        "\"[A {thing} can be mended|We can get a new {thing}], but [your honest heart is worth more|trust is hard to mend].\"",
        "Together they [cleaned up the pieces|picked up the pieces]. {N} felt much better.")
    s.moods += ["honest"]


@plot("new friend")
def neighbour(s):
    s.friend_known = True
    s.p("{Day}, {hero} saw somebody new {inplace}. It was {a fkind}, sitting all alone and looking at the ground.",
        "\"Hello,\" said {N}. \"[My name is {N}|I am {N}]. What is your name?\"")
    s.p("\"My name is {F},\" said the {fkind} [softly|in a quiet voice]. \"I [just moved here|am new here], and I do not know anybody.\"",
        "\"Now you know me!\" said {N}. \"[Would you like to play with me|Do you want to see my favourite place]?\" {F} [nodded|smiled a little].")
    s.set(s1=s.r.choice(s.spots))
    s.p("{N} showed {F} [everything|the whole {place}]. They played {s1}, and they shared some {food}. "
        "{F} knew [a new game|many funny stories|a lovely song], and {N} had never laughed so much.")
    s.p("When the sun went down, {F} said, \"I was so lonely this morning. Now I have a friend.\" "
        "\"Me too,\" said {N}. \"[See you tomorrow|Let us play again tomorrow]!\"")
    s.moods += ["kind", "friend"]


@plot("treasure map")
def treasure(s):
    a, b = s.some(s.spots, 2)
    chest, meaning = s.r.choice([
        ("a pile of old books", "every book holds an adventure"),
        ("a bag of seeds", "one seed can become a whole garden"),
        ("a little golden bell", "its song can make anyone smile"),
        ("a box of shiny stones", "there is one for every friend"),
        ("a letter", "the real treasure is the friend who came with you"),
    ])
    s.set(s1=a, s2=b, chest=chest, meaning=meaning)
    s.p("{Day}, {hero} found an old map {s1}. "
        + "[There was a big red cross on it.|It showed the way to a hidden treasure.]",
        "\"A treasure map!\" said {N}. {He} ran to show {fr}. \"[Will you help me find the treasure|Will you come with me]?\" {he} asked. \"[Yes|Of course]!\" said {F}.")
    s.p("They followed the map [over the hill|through the tall grass|across the stream] and [into a dark cave|past a big rock|through a narrow gate]. "
        "[{F} was a little afraid, but {N} held {fhis} hand.|{N} was tired, but {F} said, \"We are almost there!\"|The way was long, but they sang songs as they walked.]",
        "At last, they came to the place with the red cross. It was right {s2}!")
    s.p("They dug and dug until they found a [small|wooden|old] box. {N} opened it [slowly|carefully]. Inside was {chest}.",
        "\"It is not gold,\" said {N}. \"No,\" said {F}. \"It is better, because {meaning}.\" {N} [thought about it and smiled|nodded and laughed].")
    s.p("They carried the box home and [showed it to everyone|told everyone about their adventure].")
    s.moods += ["friend", "home"]


@plot("magic stone")
def wish(s):
    giver = s.r.choice(["fairy", "golden fish", "little star", "magic stone"])
    wishes = s.r.choice([
        ("that it would never rain again", "The flowers began to droop, and the pond became dry", "rain"),
        ("for a mountain of sweets", "{He} ate so many sweets that {his} tummy hurt", "a good soup"),
        ("to be as big as a house", "{He} was so big that {he} could not fit through {his} own door", "to be {his} own size"),
        ("that it would always be night, so {he} could see the stars", "The birds did not sing, and everyone was tired", "the sun"),
        ("for all the toys in the world", "There were so many toys that there was no room for {his} friends", "{his} friends"),
    ])
    s.set(giver=giver, wish=wishes[0], trouble=wishes[1], back=wishes[2], spot=s.r.choice(s.spots))
    s.p("{Day}, {hero} found a {giver} {spot}. " + ("It was caught in a net, and {N} set it free. " if giver == "golden fish" else
        "It shone with a [soft|bright] light. " if giver != "fairy" else "She was no bigger than a thumb. "),
        "\"[Thank you for finding me|Because you have a kind heart], I will give you two wishes,\" said the {giver}.")
    s.p("{N} thought [hard|for a while]. Then {he} wished {wish}. [Whoosh|Pop]! It came true!",
        "At first, {N} was [very happy|delighted]. But soon there was a problem. {trouble}. \"This is not what I wanted,\" {he} said.")
    s.p("{He} ran back to the {giver}. \"Please, I want to use my second wish,\" said {N}. \"I wish for everything to be as it was before.\"",
        "The {giver} [smiled|laughed softly]. \"That is a wise wish,\" " + ("she" if giver == "fairy" else "it") + " said. And everything was [just as before|as it should be].")
    s.p("{N} was so glad to " + ("be {his} own size" if "size" in wishes[2] else "have {back}") + " again.",
        "{He} [hugged {his} {elder}|ran home to {his} {elder}] and [told {ehim} everything|laughed].")
    s.moods += ["wise"]


@plot("big race")
def race(s):
    helped, trouble = s.r.choice([
        ("a little ant", "was stuck in the mud"), ("an old tortoise", "had fallen on his back"),
        ("a butterfly", "was caught in a spider web"), ("a tiny mouse", "had hurt her foot"),
    ])
    s.set(helped=helped, hname=helped.split(" ", 1)[1], trouble=trouble)
    s.p("{Day}, there was a big race {inplace}. Everyone wanted to win [the golden cup|the blue ribbon|the shiny medal]. {Hero} wanted to win too. "
        if s.hero_known else
        "{Day}, there was a big race, and {hero} wanted to win. {He} had practised for many days. ",
        "\"[Ready, set, go|One, two, three, go]!\" And off they went. {N} ran as fast as {he} could, and soon {he} was in front.")
    s.p("Then {N} saw {helped}. The {hname} {trouble}. \"[Help me|Please help me]!\" said the {hname}.",
        "{N} looked at the [finish line|other runners]. {He} wanted to win very much. But {he} stopped. \"[Do not worry, I will help you|Of course I will help you],\" {he} said.")
    s.p("{N} helped the {hname}, and everybody else ran past. When {he} came to the end, {he} was the last one.",
        "But {fr} [cheered|clapped] [loudly|louder than anyone]. \"I saw what you did,\" said {F}. \"[You may be last, but you have the biggest heart|You are the real winner today].\"")
    s.p("Everyone [clapped|cheered] for {N}, and {he} got a [ribbon|cup|medal] too. It said, \"[For the kindest heart|The kindest runner].\"")
    s.moods += ["kind", "kind", "help"]


@plot("sick friend")
def sick(s):
    s.set(gift=s.r.choice(["warm soup", "hot tea", "honey", "fresh bread"]), spot=s.r.choice(s.spots))
    s.p("{Day}, {hero} went to see {fr}. But {F} was [sick|not well]. {Fhe} was in bed, and {fhis} nose was red.",
        "\"I cannot [play|come outside] today,\" said {F}. [\"My head hurts.\"|\"I feel so weak.\"|Then {fhe} sneezed three times.]")
    s.p("{N} wanted to help. {He} ran home and [asked {his} {elder} what to do|told {his} {elder} about it]. "
        "\"[Somebody who is sick needs|{F} needs] {gift} and a good friend,\" said {his} {elder}. So they put some {gift} in a basket. "
        "On the way, {N} picked some flowers.")
    s.p("{N} [gave {F} the {gift}|put the {gift} beside the bed], and then {he} [read a story|told funny stories|sang a song]. "
        "{F} [laughed for the first time that day|began to smile]. \"I feel better already,\" {fhe} said.")
    s.p("The next day, {F} was [well again|out of bed]. \"[You are the best medicine|Thank you for taking care of me], {N},\" said {F}.")
    s.moods += ["kind", "friend"]


@plot("cold winter night")
def winter(s):
    guest, sound = s.r.choice([("an old dog", "scratching"), ("a little bird", "tapping"), ("a hungry cat", "scratching"),
                        ("a tired donkey", "knocking"), ("a small owl", "tapping"), ("a lost goose", "tapping")])
    s.set(guest=guest, g=guest.split(" ")[-1], sound=sound)
    s.p("[One cold winter night|One snowy evening|On a cold and windy night], {hero} was sitting by the fire when {he} heard [a|a soft] {sound} at the door.",
        "\"Who can that be?\" {he} wondered. {He} opened the door. Outside in the snow stood {guest}.")
    s.p("\"I am so cold,\" said the {g}. \"[May I come in|May I sit by your fire]?\"",
        "[{N} had only a little bread, but {he} said, \"Come in!\"|\"Of course,\" said {N}. \"Come in and get warm!\"] "
        "{He} gave the {g} [a bowl of soup|some bread and milk|a warm blanket] and [a place by the fire|a soft bed].")
    s.p("All night, the wind blew and the snow fell. But inside it was warm, and the two of them [told stories|talked and laughed] until they fell asleep.",
        "In the morning, [the sun was shining|the snow had stopped]. \"You were kind to me,\" said the {g}. \"I will never forget it.\"")
    s.p("[When spring came|Many days later], the {g} came back with [a basket of {food}|a beautiful flower|many new friends]. \"This is for you,\" said the {g}. "
        "And {N} was [never lonely again|so happy that {he} danced].")
    s.moods += ["kind"]


@plot("quarrel")
def quarrel(s):
    s.set(toy=s.r.choice(["ball", "drum", "kite", "swing", "sledge", "toy boat", "book"]), spot=s.r.choice(s.spots))
    s.p("{Day}, {hero} and {fr} were playing {spot}. They found a {colour} {toy}, and both of them wanted it.",
        "\"I saw it first!\" said {N}. \"No, I did!\" said {F}. They pulled and pulled, until the {toy} [broke|fell in the mud].")
    s.p("\"[It is all your fault|Look what you did]!\" said {N}. \"I do not want to play with you any more!\" said {F}. "
        "And they both went home, [angry and sad|without saying goodbye].")
    s.p("That night, {N} could not sleep. [The house was so quiet.|{He} looked at the moon and sighed.] "
        "\"Is a {toy} more important than a friend?\" {he} asked {his} {elder}. \"What do you think?\" said {his} {elder}. {N} knew the answer.")
    s.p("In the morning, {he} went to see {F}. [But {F} was already on the way!|{F} opened the door at once.] \"I am sorry,\" they both said at the same time. Then they [laughed|hugged].",
        "They " + ("cleaned" if "mud" in s.paras[-3] else "mended") + " the {toy} together, and they took turns playing with it.")
    s.moods += ["friend", "share"]


@plot("foggy path")
def lost_way(s):
    s.set(light=s.r.choice(["a tiny light", "the sound of a bell", "a bright star", "the song of a bird"]), spot=s.r.choice(s.spots))
    s.p("{Day}, {hero} went for a long walk. {He} followed a [butterfly|stream|little path] [deep into the woods|farther and farther from home]. "
        "When {he} looked around, [everything was covered in fog|the sun was going down]. \"Oh dear,\" {he} said. \"Which way is home?\"")
    if s.v["light"] in ("a tiny light", "a bright star"):
        s.p("{N} was [afraid|scared], but {he} did not cry. \"I must stay calm,\" {he} said. {He} sat down and looked around. "
            "Then {he} saw {light} [far away|in the distance]. {He} walked toward it, step by step.")
    else:
        s.p("{N} was [afraid|scared], but {he} did not cry. \"I must stay calm,\" {he} said. {He} sat down and listened. "
            "Then {he} heard {light} [far away|in the distance]. {He} walked toward it, step by step.")
    if s.r.random() < 0.55:
        s.p("It led {him} to {fr}, who was [looking for {him}|standing {spot}]. \"There you are!\" said {F}. \"[I was so worried|We have been looking for you]. Come, I know the way.\"",
            "Hand in hand, they walked home.")
    else:
        s.p("It led {him} [over a hill|across a bridge] and through a gate. And there was {his} own {home}, with a lamp in the window!",
            "{N} ran to the door. \"I am home!\" {he} called.")
    s.p("{His} {elder} [hugged {him} for a long time|was so glad to see {him}]. Then they [drank hot chocolate|ate warm bread with honey|ate hot soup] by the fire.")
    s.moods += ["home", "home", "brave"]


@plot("bright moon")
def bedtime(s):
    s.p("[One night|One warm night|One quiet night], {hero} could not sleep. {He} turned to one side, and then to the other. {He} counted [sheep|stars|to one hundred], but {he} was still awake.",
        "{He} went to the window and looked up. The moon was [big and round|bright and full].")
    s.p("\"Hello, moon,\" whispered {N}. \"[Why are you awake|Can you not sleep either]?\"",
        "\"I am always awake at night,\" said the moon [in a soft voice|gently]. \"[I watch over everyone who sleeps|I keep the night from being too dark]. Shall I tell you a story?\" \"Yes, please,\" said {N}.")
    s.p("So the moon told {him} about [the sea and the little boats|the mountains and the snow|the forest and the sleepy owls], "
        "and about [the wind that sings|the rivers that never stop|the stars that dance]. {N} listened, and {his} eyes [grew heavy|began to close].")
    s.p("\"Good night, {N},\" said the moon. But {N} did not answer. {He} was fast asleep[, dreaming of silver light|, with a smile on {his} face|].")
    s.moods += ["home", "patient"]


@plot("picnic")
def picnic(s):
    s.set(spot=s.r.choice(s.spots))
    s.p("{Day}, {hero} and {fr} [planned|wanted to have] a picnic {spot}. They packed [bread and cheese|sandwiches], {food}, and a bottle of juice.",
        "\"It will be the best picnic ever!\" said {N}.")
    s.p("But as soon as they sat down, [dark clouds came|the sky turned grey]. Drip, drop, drip! It began to rain. "
        "\"Our picnic is ruined,\" said {N}[, and {he} looked very sad|].",
        "{F} [thought for a moment|looked around]. \"No, it is not,\" {fhe} said. \"[I have an idea. Come with me|We just need a roof. Follow me]!\"")
    s.p("They ran back to the {home}, laughing in the rain. They put a blanket [over two chairs|over the table] and made a [tent|little house]. "
        "Inside, they ate {food} and listened to the rain [on the roof|falling outside]. [They told funny stories.|They sang rain songs.|It was dry and warm.]")
    s.p("When the rain stopped, there was a rainbow in the sky. \"[You were right|This was the best picnic ever], {F},\" said {N}. \"[A little rain is not so bad|I am glad that it rained].\"")
    s.moods += ["see", "friend"]


@plot("first day at school")
def school(s):
    s.friend_known = True
    s.p("{Day}, it was time for {hero} to go to school for the first time. {He} [held {his} {elder}'s hand tightly|walked very slowly]. "
        "\"What if nobody likes me?\" {he} asked. \"[Just be yourself|Just smile and say hello],\" said {his} {elder}.")
    s.p("The classroom was [big and noisy|full of new faces]. {N} sat down in the [last|first] row and looked at {his} hands.",
        "Then {he} saw {a fkind} who was sitting alone too. {N} remembered what {his} {elder} had said. {He} [smiled|took a deep breath] and said, \"Hello! I am {N}.\"")
    s.p("\"I am {F},\" said the {fkind}. \"[I was afraid to talk to anyone|I do not know anyone here]. Do you want to [draw|play|read] with me?\"",
        "So they [drew a picture of a castle|built a tower of blocks|read a book about dragons] together. [The teacher smiled when she saw them.|Soon others came to join them.]")
    s.p("When {N} came home, {he} [could not stop talking|was full of stories]. \"[School is wonderful|I like school]!\" {he} said. \"And I have a new friend!\"")
    s.moods += ["brave", "friend"]


@plot("river rescue")
def rescue(s):
    s.set(baby=s.r.choice(["duckling", "puppy", "kitten", "little mouse", "ladybird", "chick"]))
    s.p("{Day}, {hero} was sitting by the river when {he} heard a cry. \"Help! Help!\" {A baby} had fallen into the water, and the river was carrying it away.")
    if s.v["kind"] in SWIMMERS:
        s.p("{N} did not wait. {He} jumped into the water with a splash and swam as fast as {he} could. \"Hold on to me!\" {he} said.",
            "The {baby} held on, and {N} swam back to the [shore|bank].")
    else:
        s.p("{N} looked around quickly. [There was a long branch on the ground.|{He} saw a long stick in the grass.] {He} [picked it up, ran along the bank,|picked it up] and held it out over the water. \"Hold on!\" {he} shouted.",
            "The {baby} held on tight, and {N} pulled with all {his} strength until it was safe on the [grass|bank].")
    s.p("The {baby} was wet and cold. {N} [dried it with {his} scarf|wrapped it in a blanket] and carried it home, where {his} {elder} [made a warm bed|lit the fire].",
        "\"You saved me,\" said the {baby}. \"[You are so brave|You are a hero].\"")
    s.p("\"I was afraid too,\" said {N}, \"but you needed help.\" {His} {elder} [was very proud|smiled with pride].")
    s.moods += ["brave", "kind"]


@plot("little band")
def band(s):
    inst = s.some(["drum", "flute", "trumpet", "guitar", "violin", "bell"], 2)
    s.set(i1=inst[0], i2=inst[1])
    s.p("{Day}, {hero} found an old {i1} in the attic. {He} [blew the dust away|cleaned it] and began to play. [It sounded lovely.|The sound filled the whole house.]",
        "\"But it is a little lonely to play alone,\" said {N}. \"I wish I had a band.\"")
    s.p("{Fr} heard the music and [came to the window|knocked on the door]. \"[May I play too|Can I join you]? I have a {i2},\" said {F}. \"[Yes, please|Of course]!\" said {N}.",
        "At first, it sounded [terrible|very funny]. {N} played too fast, and {F} played too slow. [They laughed.|A bird flew away.] "
        "\"We have to listen to each other,\" said {F}.")
    s.p("So they listened, and they practised [every day|all week]. Soon the {i1} and the {i2} sounded beautiful together.",
        "On [Sunday|Saturday], they played for everyone {inplace}. Everyone danced and clapped[ until the stars came out|]. \"[More, more|Play it again]!\" they shouted.")
    s.moods += ["try", "friend", "help"]


@plot("cake")
def baking(s):
    s.set(cake=s.r.choice(["chocolate cake", "apple pie", "honey cake", "carrot cake", "cherry pie"]),
          oops=s.r.choice(["used salt instead of sugar", "forgot the eggs", "spilled the flour everywhere", "left it in the oven too long"]))
    s.p("{Day}, {hero} wanted to bake {a cake} for {his} {elder}. {He} put on a [big|white] apron and [opened the cookbook|washed {his} hands].",
        "{He} mixed the flour and the [butter|milk]. But {he} {oops}. [What a mess!|\"Oh dear!\" said {N}.]")
    s.p("{Fr} [looked in at the window|came in]. \"What happened here?\" asked {F}. \"I wanted to make {a cake}, but I made a mess,\" said {N} sadly.",
        "\"[Everybody makes mistakes|That happens to everyone],\" said {F}. \"Let us [clean up and ]start again.\"")
    s.p("This time, {N} read every line, and {F} [stirred the bowl|counted the eggs|weighed the sugar]. They put it in the oven and waited. Soon [a sweet smell|a wonderful smell] filled the kitchen.",
        "The {cake} was [golden|perfect]! When {his} {elder} came home, {ehe} [could not believe {ehis} eyes|took a big bite]. \"[This is delicious|How lovely]!\" {ehe} said. They all ate a big piece together.")
    s.moods += ["try", "help", "share"]


@plot("lonely dragon")
def dragon(s):
    s.set(spot=s.r.choice(["in a cave on the hill", "behind the waterfall", "in the old castle", "on top of the mountain"]))
    s.p("[Everyone said that a terrible dragon lived|There was a dragon that lived] {spot}." if s.hero_known else
        "Once upon a time, a dragon lived {spot}. Everyone was afraid of it, but not {hero}.",
        "Nobody had ever [talked to|spoken to] the dragon. {Day}, {N} [decided to go and see it|wanted to know if it was true]. {He} packed some {food} and walked [all the way|a long way].")
    s.p("The dragon was [big and green|huge and red], with smoke coming out of its nose. \"[Who is there|Who are you]?\" it [growled|asked in a deep voice].",
        "{N} was shaking, but {he} stood still. \"I am {N},\" {he} said. \"I have brought you some {food}.\"")
    s.p("The dragon [looked surprised|blinked]. Then a big tear fell from its eye. \"Nobody has ever given me anything,\" it said. \"Everybody runs away. I am so lonely.\"",
        "\"Then I will be your friend,\" said {N}. They ate the {food} and [talked all day|told each other stories].")
    s.p("[Soon|After that], the dragon came to the {place} with {N}. It [lit the lamps in the evening|kept everyone warm in winter|gave the little ones rides on its back], and nobody was afraid any more.")
    s.moods += ["kind", "brave", "kind"]


@plot("falling star")
def star(s):
    s.set(spot=s.r.choice(s.spots))
    s.p("[One night|One clear night|Late one evening], {hero} saw a star fall from the sky. It landed {spot} with a soft [thump|ping].",
        "{N} [ran outside|hurried to see it]. The little star was lying there, glowing [softly|with a pale light]. \"[Are you hurt|Are you all right]?\" asked {N}.")
    s.p("\"I [slipped|leaned too far],\" said the star. \"I want to go home, but the sky is so high.\"",
        "\"I will help you,\" said {N}. {He} [put the star in {his} pocket|held the star in both hands] and went to find {fr}. \"[The highest hill is close to the sky|We must climb the highest hill],\" said {F}.")
    s.p("So they climbed [up and up|all the way to the top]. The star [lit the path for them|shone like a lantern]. At the top, {N} lifted the star as high as {he} could.",
        "\"[One, two, three|Ready? Jump]!\" The star jumped, and [the wind carried it up|up it went] into the sky.")
    s.p("Now, every night, one little star [twinkles more than the others|winks at {N}]. {N} always waves back.")
    s.moods += ["help", "kind"]


@plot("missing colour")
def painting(s):
    s.set(what=s.r.choice(["the sunset", "the garden", "{his} {elder}", "a rainbow", "the whole {place}"]), spot=s.r.choice(s.spots))
    s.p("{Day}, {hero} wanted to paint a picture of {what}. {He} sat down with {his} [brushes|paints] {spot}. But the {colour} paint was all gone!",
        "\"I cannot finish my picture without {colour},\" said {N}.")
    s.p("{He} asked {fr}. \"[I do not have any paint|I have no paint], but I know where to find colours,\" said {F}. \"[We can make our own|Let us look around us].\"",
        "They [crushed berries|collected flowers] and [picked leaves|gathered petals]. They mixed them with a little water[ and stirred and stirred|].")
    s.p("It was not quite {colour}. It was [a new colour|something different], and it was [even more beautiful|the loveliest colour {N} had ever seen].",
        "{N} finished the picture and [hung it on the wall|gave it to {his} {elder}]. \"[What a lovely picture|How beautiful]!\" everyone said. \"Where did you get that colour?\" {N} and {F} only [smiled|laughed].")
    s.moods += ["see", "help", "friend"]


@plot("noisy monster")
def monster(s):
    s.set(spot=s.r.choice(s.spots), real=s.r.choice(["a little frog in an empty bucket", "an old gate in the wind", "a sleepy bear who was snoring",
                                                     "a small owl who was practising a song"]))
    s.p("{Day}, {hero} heard a [strange|terrible] noise {spot}. \"[Grumble, grumble|Groan, groan]!\" it went. \"It must be a monster!\" {he} said.",
        "{He} ran to {fr}. \"There is a monster {spot}!\" {N} cried. {F} [was afraid too, but {fhe} said|thought for a moment and said], \"[Let us go together|We should take a look].\"")
    s.p("They [walked slowly|went on tiptoe], closer and closer. The noise grew louder and louder. {N} held {F}'s hand. [\"I am scared,\" {he} whispered. \"Me too,\" whispered {F}.|Their hearts were beating fast.]")
    s.p("Then they looked, and what did they see? It was only {real}! {N} and {F} [laughed until they had to sit down|looked at each other and laughed]. "
        "\"[That is not a monster at all|What a funny monster]!\" said {N}.")
    s.moods += ["brave", "brave", "friend"]


@plot("letter")
def letter(s):
    s.set(love2=s.r.choice(LOVES), spot=s.r.choice(s.spots))
    s.p("{Day}, {hero} found a letter {spot}. There was no name on it. It said, \"[I would like to have a friend|I am looking for a friend]. Please write to me.\"",
        "{N} [took a pencil|sat down at once] and wrote, \"I will be your friend. [What do you like to do|Who are you]?\" {He} put the letter back in the same place.")
    s.p("The next morning, there was an answer. \"I like {love2} and I like {food},\" it said. {N} was [excited|so happy]. \"[So do I|I like that too]!\" {he} wrote.",
        "Every day, they wrote to each other. {N} [wondered|often wondered] who it could be.")
    if not s.friend_known:
        s.friend_known = True
        s.p("At last, {N} wrote, \"Let us meet.\" {He} waited {spot}. Then {a fkind} came, holding a letter.",
            "\"Are you {N}?\" asked the {fkind}. \"I am {F}. [I was too shy to say hello|I was afraid to talk to you].\" {N} [laughed and took {fhis} hand|smiled]. \"Hello, {F},\" {he} said.")
    else:
        s.p("At last, {N} wrote, \"Let us meet.\" {He} waited {spot}. And who came around the corner? It was {F}!",
            "\"It was you all the time!\" said {N}. {F} laughed. \"I thought that it was you,\" {fhe} said. \"[But it was so much fun to write|I like getting letters].\"")
    s.p("They spent the whole day together, and they still write letters to each other.")
    s.moods += ["friend", "kind"]


@plot("old clock")
def clock(s):
    s.set(thing=s.r.choice(["clock", "music box", "radio", "wooden train"]), part=s.r.choice(["wheel", "screw", "spring"]), s1=s.r.choice(s.spots))
    s.p("{Day}, {hero} saw that the old {thing} did not work any more. {His} {elder} loved that {thing}. "
        "\"[It has been in our family for a long time|It was a present from my mother],\" said {his} {elder} sadly.",
        "\"[I will try to mend it|Maybe I can mend it],\" said {N}.")
    s.p("{He} opened the {thing} [very carefully|with a little screwdriver] and looked inside. One small {part} was missing. "
        "{N} [looked under the table and behind the cupboard|searched the whole house], but {he} could not find it.")
    s.p("So {he} went to see {fr}. \"I need a very small {part},\" said {N}. {F} [thought for a moment|smiled]. "
        "\"[I found something shiny {s1}|I have a box full of little things],\" {fhe} said. And there it was, a {part} of just the right size!")
    s.p("{N} put the {part} into the {thing} and [held {his} breath|waited]. "
        + {"clock": "Tick, tock! ", "music box": "A sweet song began to play! ", "radio": "Soft music filled the room! ",
           "wooden train": "Click! The little train began to roll! "}[s.v["thing"]]
        + "{His} {elder} [had tears of joy in {ehis} eyes|laughed and clapped {ehis} hands]. \"You have clever hands and a good heart,\" {ehe} said.")
    s.moods += ["help", "again", "kind"]


@plot("snowman")
def snowman(s):
    s.set(hat=s.r.choice(["hat", "scarf", "bucket"]), nose=s.r.choice(["carrot", "pine cone", "red button"]))
    s.p("[One winter day|One snowy morning|When the first snow fell], {hero} and {fr} [ran outside|went out to play]. "
        "\"Let us make a snowman!\" said {N}. They rolled [three big balls|a big ball and a small ball] of snow and put {a nose} in the middle of the face.",
        "{N} gave the snowman {his} own {colour} {hat}. \"Now he will not be cold,\" {he} said." if s.v["hat"] != "bucket" else
        "{N} put {a colour} bucket on the snowman's head. \"Now he has a hat,\" {he} said.")
    s.p("[Every day|All winter], they played with the snowman. They [told him stories|sang him songs], and sometimes it looked as if he [smiled|winked].")
    s.p("But one day, the sun was warm, and the snowman began to melt. He became smaller and smaller. \"[Do not go|Please stay]!\" cried {N}. The next morning, there was only a {nose} and a {hat} in the grass.",
        "\"[Do not be sad|He is not really gone],\" said {F}. \"[The snow became water, and the water makes the flowers grow|He will come back with the first snow].\"")
    s.p("And {F} was right. [In spring, a ring of white flowers grew in that very place.|The next winter, the snow fell again, and they made a new snowman together.] "
        "\"[Hello, old friend|Welcome back],\" said {N}.")
    s.moods += ["patient", "friend"]


@plot("little boat")
def sailing(s):
    s.set(sea=s.r.choice(["whale", "dolphin", "seal", "big old turtle"]))
    s.p("{Day}, {hero} and {fr} [found a little boat|got into a little boat] and went out on the water. The sky was blue and the waves were small. \"[I am the captain|Look how far we have come]!\" said {N}.",
        "But then the wind grew stronger. The waves [became higher and higher|were as tall as a house], and the boat [turned around and around|rocked from side to side].")
    s.p("\"I cannot see the land!\" cried {F}. \"[Hold on tight|Stay close to me],\" said {N}. {He} was afraid, but {he} tried to be brave.",
        "Just then, {a sea} came up out of the water. \"[Do you need help|Shall I help you], little ones?\" it asked. \"Yes, please!\" they both said.")
    s.p("The {sea} [pushed|pulled] the boat gently over the waves, all the way to the shore. \"[Next time, look at the sky before you go|Do not go so far without someone who knows the water],\" it said.",
        "\"We will remember,\" said {N}. \"Thank you for saving us!\" The {sea} [splashed its tail|nodded] and swam away.")
    s.p("[{N} and {F} ran home|They walked home], wet and tired but happy to stand on the ground again.")
    s.moods += ["home", "help", "brave"]


@plot("song for everyone")
def stage(s):
    act, acting = s.r.choice([("sing a song", "sing"), ("read a poem", "read"), ("dance", "dance"), ("play the piano", "play"), ("tell a story", "speak")])
    s.set(act=act, acting=acting)
    s.p("{Day}, there was going to be a show {inplace}, and {hero} wanted to {act}. {He} [practised every day|knew every part by heart].",
        "But when the evening came, {N} looked out and saw [all the faces|so many eyes]. {His} knees began to shake. \"I cannot do it,\" {he} whispered.")
    s.p("{Fr} was standing beside {him}. \"[Look only at me|Pretend that I am the only one here],\" said {F}. \"I will sit in the first row, and I will [smile at you|hold up my hand] the whole time.\"")
    s.p("{N} walked out. For a moment, it was very quiet. {He} [took a deep breath|looked at {F}] and began to {acting}. At first, {he} was [very nervous|a little slow]. Then it became easier, and soon {he} forgot to be afraid.",
        "When it was over, everyone [clapped and cheered|stood up and clapped]. {N} [took a bow|could not believe it].")
    s.p("\"You were wonderful,\" said {F}. \"[I was so afraid|My knees were shaking],\" said {N}, \"but [you were there|I saw you smile].\"")
    s.moods += ["brave", "friend", "help"]


@plot("lost purse")
def purse(s):
    s.set(spot=s.r.choice(s.spots), owner=s.r.choice(["an old woman", "a poor woman", "the baker's wife"]), dream=s.r.choice(["a new kite", "a big bag of sweets", "a shiny bicycle", "a box of paints"]))
    s.p("{Day}, {hero} found a purse {spot}. It was full of [silver|golden] coins. \"[I am rich|So many coins]!\" said {N}. \"I could buy {dream}!\"",
        "{He} [counted the coins|held the purse tight] and [thought of all the things {he} could buy|smiled].")
    s.p("Then {he} saw {owner}, who was [looking at the ground|looking everywhere]. She looked very worried. \"Have you seen a little purse?\" she asked."
        + " \"[It was all I had|I need it to buy bread for my children].\"",
        "{N} looked at the purse. It would be so easy to say no. But {he} knew [what was right|how sad she would be].")
    s.p("\"Here it is,\" said {N}. \"I found it {spot}.\" The woman [took {his} hands|had tears in her eyes]. \"[You have an honest heart|There are not many who would do that],\" she said. \"[Thank you with all my heart|I will never forget this].\"")
    s.p("{N} went home with empty pockets, but {his} heart was full. The next day, there was a present at the door. It was {dream}, with a note that said, \"For somebody who is honest.\"")
    s.moods += ["honest", "honest", "kind"]


@plot("firefly")
def firefly(s):
    s.set(bug=s.r.choice(["firefly", "butterfly", "ladybird", "bumblebee"]))
    s.p("{Day}, {hero} caught {a bug} in a glass jar. " + ("It shone like a tiny lamp. " if s.v["bug"] == "firefly" else "It had the most beautiful wings. ")
        + "\"[Now you are mine|You will live with me], and I can look at you every day,\" said {N}.")
    s.p("{He} put the jar beside {his} bed. But the {bug} [sat still|did not move]. " + ("Its light became weaker and weaker. " if s.v["bug"] == "firefly" else "It looked out of the jar and did not open its wings. ")
        + "\"[Why are you sad|What is the matter]?\" asked {N}. \"[I gave you leaves and water|You have everything you need].\"",
        "\"I miss [the wind and the sky|my brothers and sisters],\" said the {bug} [softly|in a tiny voice].")
    s.p("{N} thought about it. {He} would not like to live in a jar either. So {he} carried the jar [into the garden|to the meadow] and opened it. \"[You are free|Fly home], little one,\" {he} said.",
        "The {bug} flew up into the air and danced around {his} head. \"Thank you!\" it called.")
    s.p("The next evening, the {bug} came back, and it was not alone. [It had brought all its friends.|Many others were with it.] They [danced in the air|filled the garden], and {N} watched them until it was time for bed.")
    s.moods += ["kind", "wise"]


@plot("hiccups")
def hiccups(s):
    cures = s.some(["drink a glass of water", "hold {his} breath", "stand on {his} head", "hop on one leg", "eat a spoon of sugar", "count backward from ten"], 2)
    s.set(c1=cures[0], c2=cures[1])
    s.p("{Day}, {hero} woke up with the hiccups. \"[Good morning|Hello], hic!\" {he} said. \"Oh no, hic! [What can I do|How can I stop this]? Hic!\"",
        "{His} {elder} told {him} to {c1}. {N} tried it, but [it did not help|nothing changed]. \"Hic!\" said {N}.")
    s.p("{He} went to see {fr}. \"You should " + cures[1].replace("{his}", "your") + ",\" said {F}.",
        "{N} tried that too. Everybody [stopped and looked|was quiet and waited]. One second, two seconds, three seconds. \"Hic!\" said {N}, louder than before.")
    s.p("Then {F} began to laugh. {Fhe} laughed so hard that {fhe} fell [into a bush|off {fhis} chair]. It looked so funny that {N} laughed too. They laughed and laughed until [their tummies hurt|they could not stand].",
        "When they stopped, it was very quiet. \"[Listen|Wait]!\" said {N}. \"The hiccups are gone!\"")
    s.p("\"[Laughing is the best cure|I knew it would work],\" said {F}. \"Hic!\" And they both began to laugh again.")
    s.moods += ["friend", "see"]


@plot("bridge and a riddle")
def riddle(s):
    q, ans = s.r.choice([
        ("What has hands but cannot clap", "A clock"), ("What has teeth but cannot bite", "A comb"),
        ("What gets wetter the more it dries", "A towel"), ("What has legs but cannot walk", "A table"),
        ("What runs all day but never gets tired", "A river"), ("What has one eye but cannot see", "A needle"),
        ("What can you catch but never throw", "A cold"),
    ])
    s.set(q=q, ans=ans)
    s.p("{Day}, {hero} was on the way to [the market|the big fair|the next village]. {He} came to a bridge, and on the bridge sat a [grumpy old troll|big grumpy troll].",
        "\"[Stop|Halt]!\" said the troll. \"Nobody may cross my bridge without an answer to my riddle. {q}?\"")
    s.p("{N} sat down and thought. [{He} thought of animals, and {he} thought of trees.|{He} scratched {his} head.] \"Is it a fish?\" {he} asked. \"No!\" said the troll. \"[You have one more try|Try again].\"",
        "{N} closed {his} eyes and thought [harder|about every word]. Then {he} [jumped up|laughed]. \"I know!\" {he} said. \"{ans}!\"")
    s.p("The troll [was very surprised|opened his mouth]. \"That is right,\" he said. \"How did you know?\""
        + " \"I [took my time|did not give up],\" said {N}.",
        "Then {he} saw that the troll looked lonely. \"[Would you like to come with me|Shall I come back and bring you a riddle]?\" {he} asked. For the first time in many years, the troll smiled.")
    s.p("After that, {N} came to the bridge every week, and {he} and the troll told each other riddles [over a cup of tea|until the sun went down].")
    s.moods += ["again", "kind", "patient"]


@plot("boast")
def boast(s):
    what, doing = s.r.choice([("run", "runner"), ("jump", "jumper"), ("climb", "climber"), ("sing", "singer"), ("dance", "dancer")])
    s.set(what=what, doer=doing)
    s.p("{Day}, {hero} said to everyone, \"I am the best {doer} in the whole world! Nobody can {what} like me!\" {He} said it in the morning, and {he} said it at lunch.",
        "[Soon, nobody wanted to listen any more.|The others looked at each other and sighed.] \"You can {what} very well,\" said {fr}, \"but [it is not nice to boast|you do not have to say it all the time].\"")
    s.p("{N} did not listen. \"Watch me!\" {he} shouted. {He} turned around to see who was watching, and [splash|oops]! {He} fell right into a muddy puddle. {He} was covered in mud from head to toe.",
        "For a moment, it was quiet. {N} felt {his} face turn red. {He} thought that everyone would laugh at {him}.")
    s.p("But {F} [held out a hand|came with a towel]. \"Are you hurt?\" {fhe} asked."
        + " {N} shook {his} head. \"[I was silly|I am sorry that I was so proud],\" {he} said. \"You are a better friend than I am a {doer}.\"")
    s.p("{F} laughed. \"Come on, let us {what} together,\" {fhe} said. And it was [much more fun|so much better] than being the best.")
    s.moods += ["proud", "friend"]


def story(seed):
    return Story(seed).build()


SENTENCES = [
    "{N} [found|lost|has] {a colour} {toy}.", "\"[Hello|Good morning|Thank you],\" said {N}.", "{N} loved {food}.",
    "{N} looked {spot}.", "\"Where are you, {N}?\" asked {his} {elder}.", "{He} [went home|was happy|smiled].",
    "{N} hugged {his} {elder}.", "{N} [laughed|danced|sang].", "{His} {elder} smiled at {N}.", "{N} picked up the {toy}.",
    "\"I am {N},\" {he} said.", "\"The {toy} is mine,\" said {N}.", "{N} loved {love}.", "{N} saw {F}.", "{F} hugged {N}.",
    "\"Look, {F}!\" said {N}.", "\"Come with me, {N},\" said {F}.", "{F} gave {N} some {food}.", "{Fhe} [was kind|laughed].",
    "{N} and {F} played {spot}.", "{N} thanked {F}.", "\"You are my friend, {N},\" said {F}.",
]


def exercise(seed):
    """Returns a few short sentences about one or two characters, for the steps COPYING of train.py."""
    s = Story(seed)
    s.set(toy=s.r.choice(TOYS), spot=s.r.choice(s.spots))
    text = [s.expand("{N} is a {kind}." if article(s.v["kind"]) == "a" else "{N} is an {kind}.")]
    pool = [x for x in SENTENCES if "{F" not in x]
    if s.r.random() < 0.5:
        text.append(s.expand("{F} is {a fkind}."))
        pool = SENTENCES
    text += [s.expand(x) for x in s.some(pool, s.r.randint(4, 7))]
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", " ".join(text))


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--start", type=int, default=0, help="first seed")
    ap.add_argument("--count", type=int, default=1)
    ap.add_argument("--out", default="-", help="file to write; - is standard output")
    a = ap.parse_args()
    f = sys.stdout if a.out == "-" else open(a.out, "w", encoding="utf-8")
    for seed in range(a.start, a.start + a.count):
        f.write(story(seed) + "\n\n<|end_of_text|>\n")


if __name__ == "__main__":
    main()
