"""Patterns of Chinese statements of facts, and of statements that a fact has changed."""

from strata.shared.search.outdated.language_rules import LanguageRules, Predicate, Value

CHINESE = LanguageRules(
    code="zh",
    unspaced=True,
    speaker="^(?:我|我们|咱们)?$",
    by_speaker="^(?:我|我们|咱们)",
    others=(
        "你的|你们的|他的|她的|他们的|(?:妈|爸|哥|姐|弟|妹|姑|叔|舅|姨|爷|奶)+|儿子|女儿|孩子|朋友|同事"
        "|老婆|老公|丈夫|妻子|邻居|奶奶"
    ),
    passed_over="现在|目前|如今|终于|刚刚|最近|已经|其实|从此|上个月|上周|从下周起|新的?(?=[\u4e00-\u9fff])",
    current="现在|目前|如今|从此|起|不再|新的|新(?!鲜)|又|了$",
    unsure="如果|要是|也许|可能|大概|想要?|希望|打算|考虑|差点|也|另外|第二|以前|曾经|原来|过去|昨天|今天|明天|要不要|年戒",
    qualified="星期[一二三四五六日天]|周[一二三四五六日末]|晚上|早上我|夏天|冬天|有时|偶尔",
    negated="不|没",
    properties="密码|号码|地址|邮箱|房租|租金|工资|预算|截止日期|价格|费用|会费|年龄|体重|身高|职业|时区|版本|最喜欢的|班次|车",
    roles="老板|经理|房东|老师|教练|医生|牙医|律师|主任|校长|负责人|上司",
    no_value="[0-9一二两三四五六七八九十]楼|家|里|宿舍|一起|很|太|在|不",
    predicates=(
        Predicate("home", "(?:住在|住)", Value.PLACE),
        Predicate("home", "(?:搬到|搬去|搬来)了?(?P<v>[^了]{2,6})了?$", Value.PLACE, changed=True),
        Predicate("employer", "在(?P<v>[^在]{2,8}?)(?:工作|上班)", Value.ANY),
        Predicate("studies", "改学(?P<v>.{2,6}?)了?$", Value.ANY, changed=True),
        Predicate("studies", "学(?P<v>.{2,6}?)了?$", Value.ANY),
        Predicate("vehicle", "开(?!始|门|会)(?:一辆)?(?:旧)?", Value.ANY),
        Predicate(
            "is",
            "(?:改到|改成|改在|推迟到|提前到|涨到|降到|升到|提高到|增加到|减少到|调到)(?P<v>.+?)了?$",
            changed=True,
        ),
        Predicate(
            "starts",
            "(?=[0-9一二两三四五六七八九十]+点(?:开始|上班))|(?=(?:早上|下午|晚上)[0-9一二两三四五六七八九十]+点上班)",
        ),
        Predicate("opens", "(?=[0-9一二两三四五六七八九十]+点开门)"),
        Predicate("lead", "由(?P<v>.+?)负责", Value.ANY),
        Predicate("uses", "用(?=[0-9]+端口)"),
        Predicate("prefers", "喜欢(?!的)", Value.ANY),
        Predicate("is", "(?:是|叫|为)"),
        Predicate("is", "(?:每|一个)月(?=[0-9零一二两三四五六七八九十百千万]+)"),
    ),
    ended=(
        "^(?P<s>.*?)不再?(?P<o>.{2,8}?)了$",
        "^(?P<s>.*?)戒(?P<o>.{1,3}?)了$",
        "^(?P<s>)(?P<o>.{2,4}?)卖了$",
    ),
    resumed=("^(?P<s>.*?)又(?:能|开始|可以)?(?P<o>.{2,6}?)了$",),
    replaced=("从(?P<o>.+?)(?:换成|改成|改用|换到)了?(?P<v>.+?)了?$",),
    weekdays=(
        "星期一|周一|礼拜一",
        "星期二|周二|礼拜二",
        "星期三|周三|礼拜三",
        "星期四|周四|礼拜四",
        "星期五|周五|礼拜五",
        "星期六|周六|礼拜六",
        "星期日|星期天|周日|礼拜天",
    ),
    months=(
        "一月|1月",
        "二月|2月",
        "三月|3月",
        "四月|4月",
        "五月|5月",
        "六月|6月",
        "七月|7月",
        "八月|8月",
        "九月|9月",
        "十月|10月",
        "十一月|11月",
        "十二月|12月",
    ),
    hour="(上午|下午|早上|晚上)?([0-9]{1,2}|[一二两三四五六七八九十]{1,3})点",
)
