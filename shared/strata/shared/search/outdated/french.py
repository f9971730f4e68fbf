"""Patterns of French statements of facts, and of statements that a fact has changed."""

from strata.shared.search.outdated.language_rules import LanguageRules, Predicate, Value

FRENCH = LanguageRules(
    code="fr",
    speaker="je|j|nous|on",
    others="son|sa|ses|leur|leurs|ton|ta|tes|votre|vos",
    rewritten=((r"\b([jlnmtsdc]|qu)'", r"\1 "),),
    passed_over=(
        r"maintenant|desormais|actuellement|en ce moment|enfin|finalement|au fait|dorenavant|deja"
        r"|recemment|vraiment|donc|alors|oui|bon|nouveau|nouvelle|nouvel|depuis (?:lundi|janvier"
        r"|fevrier|mars|avril|mai|juin|juillet|aout|septembre|octobre|novembre|decembre)"
    ),
    current=(
        r"maintenant|desormais|actuellement|en ce moment|dorenavant|nouveau|nouvelle|nouvel"
        r"|a partir de|depuis (?:lundi|janvier|fevrier|mars|avril|mai|juin|juillet|aout|septembre"
        r"|octobre|novembre|decembre)|a la place"
    ),
    unsure=(
        r"si|peut-etre|pourrais?|devrais?|voudrais?|aimerais?|veux|espere|pense|envisage|prevois"
        r"|presque|aussi|egalement|en plus|deuxieme|second|avant|autrefois|etais|etait|etaient"
        r"|avais|avait|habitais|habitait|vivais|jusqu|aujourd hui|aujourd'hui|hier|demain"
        r"|reve|parfois"
    ),
    qualified=(
        r"(?:le )?(?:lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche)s?|week-ends?|le soir"
        r"|le matin|l ete|l hiver|parfois|mi-temps|pendant|quand"
    ),
    negated="ne|n|pas|jamais|aucun|aucune",
    properties=(
        r"mot de passe|code|numero|adresse|e-?mail|courriel|loyer|salaire|budget|date limite"
        r"|echeance|prix|tarif|cotisation|age|poids|taille|surnom|metier|profession|employeur"
        r"|banque|fournisseur|fuseau|version|statut|\w+ prefere|\w+ preferee|devise|limite|objectif"
        r"|voiture"
    ),
    roles=(
        r"chef|cheffe|patron|patronne|proprietaire|gardien|gardienne|directeur|directrice|prof"
        r"|professeur|professeure|entraineur|entraineuse|medecin|docteur|dentiste|avocat|avocate"
        r"|responsable|superieur|kine"
    ),
    no_value=(
        r"(?:trop|tres|pas|en|dans|a|au|chez|pour|presque|faux|fausse|mauvais|bon|bonne|haut|bas"
        r"|long|court|de|du|avec|comme|parce|que|casse|cassee|pret|prete|la|ici|plus|moins|encore)\b"
    ),
    value_end=(
        r"et|mais|ou|parce|depuis|avec|pres|comme|pour|apres|avant|dans|en|a|au|aux|sur|par|chez|qui"
        r"|que|jusqu|est|sont|ont"
    ),
    predicates=(
        Predicate("home", r"(?:habite|habitons|vis|vit|vivons|loge) (?:.+ )?a", Value.PLACE),
        Predicate(
            "home",
            r"(?:ai|a|avons|est|suis) (?:demenage|emmenage) a",
            Value.PLACE,
            changed=True,
        ),
        Predicate("employer", r"(?:travaille|travaillons) (?:dans|chez|pour|a)", Value.ANY),
        Predicate("profession", r"(?:travaille) comme", Value.ANY),
        Predicate("studies", r"(?:etudie)", Value.ANY),
        Predicate("vehicle", r"(?:conduis|conduit)(?: une?)?(?: vieille| vieux)?", Value.ANY),
        Predicate(
            "relationship",
            r"suis(?= (?:celibataire|mariee?|fiancee?|divorcee?|veuf|veuve)\b)",
            Value.ANY,
        ),
        Predicate("weight", r"(?:pese)"),
        Predicate(
            "is",
            r"(?:ai|a|avons|ont|est|sont) (?:ete )?(?:deplacee?s?|reportee?s?|passee?s?|montee?s?"
            r"|descendue?s?|avancee?s?|changee?s?|augmentee?s?|baissee?s?) (?:a|au|pour)",
            changed=True,
        ),
        Predicate(
            "is",
            r"(?:ai|a|avons|ont) (?:porte|monte|augmente|baisse|deplace|reporte|change)"
            r" (?P<s>[\w ]+?) (?:a|au|pour|en) (?P<v>.+)",
            changed=True,
        ),
        Predicate("costs", r"(?:coute|coutent)"),
        Predicate("starts", r"(?:commence|debute) a"),
        Predicate("opens", r"ouvre a"),
        Predicate("closes", r"ferme a"),
        Predicate("leaves", r"part a"),
        Predicate("runs", r"tourne sur"),
        Predicate("lead", r"est dirigee? par"),
        Predicate("is", r"(?:est|sont|s appelle|s elevent?)(?: de| a| en)?"),
        Predicate("prefers", r"prefere", Value.ANY),
    ),
    ended=(
        r"^(?P<s>.*?)\bn[e ]? ?(?P<o>\w+ )plus(?: d[eu]?| au?x?)?(?P<o2>.*) *$",
        r"^(?P<s>.*?)\b(?:ai|a|avons|as) (?:arrete|abandonne|quitte|vendu) (?:de |d )?(?P<o>.+) *$",
    ),
    resumed=(
        r"^(?P<s>.*?)\b(?P<o>\w+) de nouveau (?P<o2>.+) *$",
        r"^(?P<s>.*?)\b(?:ai|a|avons) repris (?P<o>.+) *$",
    ),
    replaced=(r"\b(?:suis|est|sommes|passe|passee?s?) (?:passee?s? )?de (?P<o>.+?) a (?P<v>.+)",),
    vague="vais|va|viens|vient|vois|voit|sais|sait|fais|fait|peux|peut|trouve|veux|ai|a|suis|est",
    trailing=(
        r"il y a \w+ (?:jours|semaines|mois|ans)|en \d{4}|parce .*|completement|du tout"
        r"|la semaine derniere"
    ),
    weekdays=(
        "lundi|lundis",
        "mardi|mardis",
        "mercredi|mercredis",
        "jeudi|jeudis",
        "vendredi|vendredis",
        "samedi|samedis",
        "dimanche|dimanches",
    ),
    months=(
        "janvier",
        "fevrier",
        "mars",
        "avril",
        "mai",
        "juin",
        "juillet",
        "aout",
        "septembre",
        "octobre",
        "novembre",
        "decembre",
    ),
    hour=r"\b(\d{1,2}) ?(?:h|heures?)(?: ?(\d\d))?\b|\b(\d{1,2}):(\d\d)\b",
)
