"""Patterns of Spanish statements of facts, and of statements that a fact has changed."""

from strata.shared.search.outdated.language_rules import LanguageRules, Predicate, Value

SPANISH = LanguageRules(
    code="es",
    speaker="yo|nosotros|nosotras|me|nos",
    by_speaker=(
        r"^ (?:(?:yo|nosotros|nosotras|ya|no|me|nos|he|hemos|deje|dejamos|vendi) ?)+"
        r"|^ \w+(?:o|oy|amos|emos|imos)\b"
    ),
    others="su|sus|tu|tus|vuestro|vuestra",
    passed_over=(
        r"ahora|actualmente|en este momento|por fin|finalmente|por cierto|a partir de ahora|hoy en"
        r" dia|recientemente|pues|bueno|si|vale|nuevo|nueva|desde (?:el )?(?:lunes|enero|febrero"
        r"|marzo|abril|mayo|junio|julio|agosto|septiembre|octubre|noviembre|diciembre)"
    ),
    current=(
        r"ahora|actualmente|en este momento|a partir de|hoy en dia|nuevo|nueva|ya|en su lugar"
        r"|desde (?:el )?(?:lunes|enero|febrero|marzo|abril|mayo|junio|julio|agosto|septiembre"
        r"|octubre|noviembre|diciembre)"
    ),
    unsure=(
        r"quizas?|tal vez|a lo mejor|podria|deberia|quisiera|gustaria|quiero|queremos|espero"
        r"|pienso|pensando|planeo|casi|tambien|ademas|segundo|segunda|antes|era|eran|estaba|tenia"
        r"|vivia|trabajaba|hasta|hoy|ayer|manana|sueno|a veces|ojala|cuando"
    ),
    qualified=(
        r"los? (?:lunes|martes|miercoles|jueves|viernes|sabados?|domingos?)|fin(?:es)? de semana"
        r"|por la (?:noche|manana|tarde)|en (?:verano|invierno)|a veces|media jornada|durante"
    ),
    negated="no|nunca|ningun|ninguna",
    properties=(
        r"contrasena|clave|codigo|numero|direccion|correo|e-?mail|alquiler|salario|sueldo"
        r"|presupuesto|plazo|fecha limite|precio|tarifa|cuota|edad|peso|altura|apodo|profesion"
        r"|empleador|banco|proveedor|zona horaria|turno|version|estado|\w+ favorit[oa]|moneda"
        r"|limite|objetivo|coche"
    ),
    roles=(
        r"jefe|jefa|casero|casera|portero|portera|director|directora|profesor|profesora"
        r"|entrenador|entrenadora|medico|medica|doctor|doctora|dentista|abogado|abogada"
        r"|responsable|encargado|encargada|fisio"
    ),
    no_value=(
        r"(?:demasiado|muy|no|en|a|de|del|con|para|casi|malo|mala|bueno|buena|alto|alta|bajo|baja"
        r"|largo|corto|como|porque|que|roto|rota|listo|lista|aqui|alli|mas|menos|todavia|aun)\b"
    ),
    value_end=(
        r"y|pero|o|porque|desde|con|cerca|como|para|despues|antes|en|a|al|por|que|donde|hasta|es|son"
        r"|esta|ha|han"
    ),
    predicates=(
        Predicate("home", r"(?:vivo|vivimos) (?:.+ )?en", Value.PLACE, speaker=True),
        Predicate("home", r"vive (?:.+ )?en", Value.PLACE),
        Predicate(
            "home",
            r"(?:me he|nos hemos|me|nos) (?:mudado|mude|mudamos) a",
            Value.PLACE,
            changed=True,
            speaker=True,
        ),
        Predicate("home", r"se (?:ha )?(?:mudado|mudo) a", Value.PLACE, changed=True),
        Predicate("employer", r"(?:trabajo|trabajamos) (?:en|para)", Value.ANY, speaker=True),
        Predicate("employer", r"trabaja (?:en|para)", Value.ANY),
        Predicate("profession", r"trabajo (?:como|de)", Value.ANY, speaker=True),
        Predicate("studies", r"(?:estudio|estudiamos)", Value.ANY, speaker=True),
        Predicate("vehicle", r"conduzco(?: un| una)?(?: viej[oa])?", Value.ANY, speaker=True),
        Predicate(
            "relationship",
            r"estoy(?= (?:solter|casad|prometid|divorciad)[oa]\b)",
            Value.ANY,
            speaker=True,
        ),
        Predicate("weight", r"peso", speaker=True),
        Predicate(
            "is",
            r"(?:ha|han|se ha|se han|ha sido) (?:subido|bajado|cambiado|pasado|aplazado|aumentado"
            r"|movido|adelantado|retrasado|trasladado) (?:a|al|hasta|para)",
            changed=True,
        ),
        Predicate(
            "is",
            r"(?:he|hemos|han) (?:subido|bajado|cambiado|aumentado|movido|aplazado|reducido)"
            r" (?P<s>[\w ]+?) (?:a|al|hasta|para) (?P<v>.+)",
            changed=True,
        ),
        Predicate("costs", r"(?:cuesta|cuestan)"),
        Predicate("starts", r"(?:empieza|comienza) a"),
        Predicate("opens", r"abre a"),
        Predicate("closes", r"cierra a"),
        Predicate("leaves", r"sale a"),
        Predicate("uses", r"usa(?: el| la)?(?= \w+ \d)"),
        Predicate("lead", r"lo dirige"),
        Predicate("is", r"(?:es|son|se llama|se llaman)(?: de| en)?"),
        Predicate("prefers", r"prefiere", Value.ANY),
    ),
    ended=(
        r"^(?P<s>.*?)\bya no (?:me |se |nos )?(?P<o>.+) *$",
        r"^(?P<s>.*?)\b(?:he|ha|hemos|han) dejado (?:de )?(?P<o>.+) *$",
        r"^(?P<s>.*?)\b(?:deje|dejo|dejamos|vendi|he vendido|hemos vendido) (?:de )?(?P<o>.+) *$",
    ),
    resumed=(
        r"^(?P<s>.*?)\b(?:vuelvo|volvemos|vuelve|he vuelto|volvi) a (?P<o>.+) *$",
        r"^ (?P<s>)(?P<o>.+) (?:otra vez|de nuevo) *$",
    ),
    replaced=(r"\b(?:pasado|cambiado|pasamos|cambiamos|migrado) de (?P<o>.+?) a (?P<v>.+)",),
    vague=(
        "voy|va|vamos|vengo|viene|veo|ve|se|hago|hace|puedo|puede|encuentro|quiero|tengo"
        "|tiene|soy|es|estoy"
    ),
    trailing=r"hace \w+ (?:dias|semanas|meses|anos)|en \d{4}|porque .*|del todo|la semana pasada",
    weekdays=(
        "lunes",
        "martes",
        "miercoles",
        "jueves",
        "viernes",
        "sabado|sabados",
        "domingo|domingos",
    ),
    months=(
        "enero",
        "febrero",
        "marzo",
        "abril",
        "mayo",
        "junio",
        "julio",
        "agosto",
        "septiembre|setiembre",
        "octubre",
        "noviembre",
        "diciembre",
    ),
    hour=r"\b(\d{1,2}):(\d\d)\b|\ba las? (\d{1,2})\b",
)
