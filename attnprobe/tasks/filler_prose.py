"""The built-in grammars: prose on geology, foreign to every built-in needle, and prose of a needle's own domain."""

from __future__ import annotations

from attnprobe.tasks.filler_grammar import Grammar
from attnprobe.tasks.items import Terms

_ROCKS = (
    *("granite", "basalt", "sandstone", "limestone", "shale", "gneiss", "schist", "dolomite", "marble", "slate"),
    *("chalk", "gabbro", "quartzite", "conglomerate", "mudstone", "siltstone", "andesite", "rhyolite", "tuff"),
    *("serpentinite", "peridotite", "phyllite", "breccia", "travertine", "diorite", "obsidian", "pumice", "marl"),
    *("greywacke", "amphibolite"),
)

GEOLOGY = Grammar(
    patterns=(
        "The {rock} of the {landform} rests {firmness} on {texture} {other}, from which it is parted by {boundary}.",
        "{setting}, {agent} {shaped} the {texture} {rock} until nothing but {remnant} was to be seen.",
        "Under the lens, {texture} {rock} shows grains of {mineral} that {habit} between flakes of {mineral}.",
        "It is {likely} that the {rock} formed {origin}, since {evidence} {turn_up} in nearly every {exposure}.",
        "{setting}, the {rock} gives way to {texture} {other}, and {boundary} {marks} the change.",
        "Hikers on the {landform} seldom notice the {rock}, although {evidence} {turn_up} along the whole {exposure}.",
        "Where {agent} {reached} the {landform}, the {texture} {rock} {decays} into {debris}.",
        "A {texture} band of {mineral} {crosses} the {rock} {setting_tail}, which points to {process}.",
        "Older maps draw the {rock} as {other}, a mistake that {evidence} {setting_tail} would have prevented.",
        "Geologists explain the {landform} by {process}, though some of them prefer {process}.",
        "Because {mineral} {resists} weathering better than {mineral}, the {rock} {setting_tail} ends in {remnant}.",
        "{setting}, {process} lifted the {rock} so gently that {boundary} stayed {firmness} in its place.",
        "The {texture} {other} beneath the {rock} {holds} {debris}, a sign of {process} {setting_tail}.",
        "Nothing about the {landform} suggests {process}, and yet the {rock} {holds} {evidence}.",
        "As {agent} {shaped} the {landform}, {debris} gathered {setting_tail} and buried the {texture} {rock}.",
        "Compared with {texture} {other}, the {rock} {setting_tail} {breaks}, and {mineral} glitters in every crack.",
        "{evidence} {turn_up} wherever the {rock} and the {other} touch, {setting_tail} above all.",
        "Cores from the {landform} contain {texture} {rock}, then {debris}, and at last {other} rich in {mineral}.",
        "Long after {process} had ended, {agent} {reached} the {landform} and stripped the {rock} {setting_tail}.",
        "The slow growth of {mineral} in the {rock} is {likely} the work of {agent_noun} {setting_tail}.",
        "Between the {landform} and the nearest {exposure}, {texture} {rock} {breaks} and hides {evidence}.",
        "No {exposure} of the region displays {rock} and {texture} {other} together as well as the {landform} does.",
    ),
    words={
        "rock": _ROCKS,
        "other": _ROCKS,
        "mineral": (
            *("quartz", "feldspar", "mica", "calcite", "olivine", "pyroxene", "garnet", "hornblende", "magnetite"),
            *("pyrite", "gypsum", "kyanite", "epidote", "chlorite", "zircon", "apatite", "hematite", "barite"),
            *("fluorite", "tourmaline", "sillimanite", "staurolite"),
        ),
        "texture": (
            *("coarse", "fine-grained", "weathered", "banded", "folded", "fractured", "crumbly", "dense", "porous"),
            *("glassy", "cleaved", "sheared", "nodular", "massive", "brittle", "recrystallised", "cross-bedded"),
            *("faulted", "veined", "gritty"),
        ),
        "landform": (
            *("ridge", "escarpment", "gorge", "plateau", "moraine", "fault scarp", "headland", "alluvial fan"),
            *("caldera", "sinkhole", "cirque", "dune field", "delta", "fjord", "mesa", "lava field", "scree slope"),
            *("canyon", "volcanic neck", "limestone pavement"),
        ),
        "exposure": ("outcrop", "quarry face", "cliff", "stream cut", "ravine", "road cutting", "gully", "crag"),
        "firmness": ("unevenly", "directly", "firmly", "loosely", "conformably", "steeply", "almost flatly"),
        "boundary": (
            *("a thin seam of clay", "an old erosion surface", "a sharp contact", "a zone of crushed grains"),
            *("a faint change of grain", "a crust of iron", "an undulating unconformity", "a gouge-filled fault"),
            *("a string of pebbles", "a chilled margin"),
        ),
        "setting": (
            *("along the northern rim", "in the heart of the massif", "towards the coast", "beneath the glacier"),
            *("on the sheltered flank", "above the tree line", "near the ancient shoreline", "west of the divide"),
            *("in the upper gorge", "at the foot of the range", "below the summit", "beyond the fault"),
            *("around the extinct vent", "on the valley floor", "in the deepest ravine"),
        ),
        "setting_tail": (
            *("along the southern rim", "in the core of the fold", "towards the desert", "beneath the ice"),
            *("on the windward flank", "near the former lagoon", "east of the divide", "in the lower gorge"),
            *("at the edge of the craton", "below the pass", "beyond the thrust", "around the intrusion"),
            *("on the abandoned terrace", "inside the rift", "under the delta"),
        ),
        "agent": (
            *("meltwater", "frost", "the glacier", "volcanic ash", "groundwater", "wind-blown sand", "the swell"),
            *("a landslide", "hot brine", "the river", "surf", "acidic rain", "creeping soil"),
        ),
        "agent_noun": ("hot brine", "seeping groundwater", "trapped steam", "buried heat", "deep pressure"),
        "shaped": ("scoured", "undercut", "polished", "gnawed at", "carved", "smoothed", "wore down", "hollowed out"),
        "reached": ("reached", "breached", "overran", "flooded", "met", "seeped into", "invaded", "brushed"),
        "remnant": (
            *("a rounded knoll", "a row of pinnacles", "an isolated stack", "a jagged crest", "a gentle hummock"),
            *("a field of boulders", "a narrow arch", "a stump of harder rock", "a stepped cliff"),
        ),
        "debris": (
            *("angular rubble", "fine silt", "rounded pebbles", "gritty clay", "loose gravel", "powdery dust"),
            *("blocks of every size", "sticky mud", "glacial till", "shell fragments", "coarse sand"),
        ),
        "habit": (
            *(
                "grow inward",
                "lie scattered",
                "interlock tightly",
                "radiate outward",
                "fill the gaps",
                "form small fans",
            ),
            *("align themselves", "swell and pinch"),
        ),
        "likely": ("probably", "almost certainly", "arguably", "possibly", "plainly", "by all accounts"),
        "origin": (
            *("in a shallow sea", "at the mouth of a great river", "deep inside the crust", "from cooling magma"),
            *(
                "under a crushing load of ice",
                "in a restless lagoon",
                "on the slope of a volcano",
                "in a sinking trough",
            ),
            *("from drifting dunes", "at the bottom of a rift lake"),
        ),
        "evidence": (
            *("ripple marks", "fossil corals", "cooling joints", "glacial scratches", "mud cracks", "ammonite moulds"),
            *("raindrop pits", "slickensides", "root traces", "burrows of worms", "flow banding", "drag folds"),
            *("crinoid stems", "dropstones"),
        ),
        "turn_up": ("turn up", "appear", "stand out", "recur", "lie exposed", "abound", "come to light"),
        "marks": ("marks", "betrays", "blurs", "outlines", "accompanies", "follows"),
        "decays": ("decays", "crumbles", "dissolves", "collapses", "disintegrates", "weathers"),
        "crosses": ("crosses", "splits", "threads", "pierces", "skirts", "underlies"),
        "process": (
            *("slow uplift", "repeated faulting", "an ancient collision of plates", "the retreat of the ice"),
            *("a collapse of the magma chamber", "the drying of an inland sea", "deep burial", "regional folding"),
            *("a flood of lava", "the tilting of the whole block", "steady subsidence", "a violent eruption"),
            *("chemical weathering", "creep along the fault"),
        ),
        "resists": ("resists", "withstands", "survives", "endures"),
        "holds": ("holds", "encloses", "conceals", "preserves", "yields", "contains"),
        "breaks": (
            *(
                "breaks into slabs",
                "splits along its cleavage",
                "fractures in curved shells",
                "flakes under the hammer",
            ),
            *("crumbles between the fingers", "rings like metal", "parts into thin sheets", "shatters into wedges"),
        ),
    },
    topic="rock",
)

_DOMAIN_PATTERNS = (
    "{moment}, the {person} {handles} the {state} {thing} {place}.",
    "The {state} {thing} {place} is {handled} by the {person} {when}.",
    "If the {thing} is {state}, the {person} {handles} the {thing} {place} and tells the {person}.",
    "The {person} and the {person} agree that the {thing} {place} is {handled} {when}.",
    "Nobody but the {person} {handles} the {state} {thing} {when}, least of all {place}.",
    "A {state} {thing} was left {place}, and the {person} blamed the {person}.",
    "{moment}, a note {place} reminds the {person} that the {thing} must be {handled} {when}.",
    "The {person} would rather see the {state} {thing} {handled} {place} than argue with the {person}.",
    "Every {person} knows that the {thing} {place} may be {handled} {when}.",
    "Since the {thing} went missing {place}, the {person} {handles} every {state} {thing} {when}.",
    "The rule on the {thing} was written by the {person}, who found a {state} {thing} {place}.",
    "{moment}, it falls to the {person} to see that no {thing} {place} stays {state}.",
)
_COMMON = {
    "handles": (
        *("checks", "replaces", "signs for", "puts away", "reports", "cleans", "labels", "counts", "hands over"),
        *("repairs", "collects", "inspects"),
    ),
    "handled": (
        *("checked", "replaced", "signed for", "put away", "reported", "cleaned", "labelled", "counted"),
        *("handed over", "repaired", "collected", "inspected"),
    ),
    "state": ("damaged", "unused", "borrowed", "missing", "new", "worn", "misplaced", "spare", "unlabelled", "dusty"),
    "when": (
        *("before closing", "after the briefing", "as a rule", "without delay", "whenever there is time"),
        *("at the change of shifts", "on request", "in the presence of a witness", "when nobody is waiting"),
        *("before anyone else arrives", "during inspections", "if the list says so"),
    ),
    "moment": (
        *("on a busy morning", "after a complaint", "during the holidays", "in a quiet hour", "when staff are short"),
        *("before an inspection", "on the quietest afternoon", "as soon as the doors open", "towards the evening"),
        *("after a false alarm", "in wet weather", "whenever visitors are expected"),
    ),
}


def domain_grammar(terms: Terms) -> Grammar:
    """Prose on the daily business of a domain, made of its people, things and places."""
    words = {**_COMMON, "person": terms.people, "thing": terms.things, "place": terms.places}
    return Grammar(_DOMAIN_PATTERNS, words, topic="thing")
