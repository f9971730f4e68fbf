"""Ordinary questions without a time, whose words must not be recognised as one."""

from __future__ import annotations

import pytest

from named_times import days

_ENGLISH = """
May I ask you something?
What may I eat?
Who is my second child?
Do we march on?
What does the sun do to my skin?
Who is April?
What did June say about the house?
What is my favourite food?
Where do I live?
What is the name of my dog?
How old am I?
Do I have any allergies?
Which car do I drive?
What is my sister's job?
Do I like spring rolls?
What happened after the fall?
Do I fall asleep easily?
What is my phone number?
How many children do I have?
What did I say about Ana?
Which version of Python do I use?
Is Python 3.11.7 installed?
What is 10/3?
How do I get to the office?
What is the wifi password?
What are my hobbies?
Did I win the second prize?
What does Mon Repos look like?
Who won the wed dress contest?
What did Augusta give me?
Am I a morning person?
What is on my to-do list?
Do I prefer tea or coffee?
Who is Friday in Robinson Crusoe?
What is the Monday blues playlist?
Is it now or never?
What is my day job?
How many days off do I have?
What is a good week plan?
What is my weekly budget?
Who is my yearbook editor?
Where is the year-end report?
Is my cat called Summer?
What is Winter's real name?
Do I use Windows 2000?
What is the Peugeot 2008 like?
Summarise this in 2000 words.
Is my locker 2024 or 2025?
How far is 1900 m?
What is the code CVE-2024-1234?
What is INV-2026-03?
Call 555-12-34
Is 192.168.2.1 my router?
Which colour is my bike?
Tell me about quarter pounders
Do I have a quarter of the shares?
What is the Easter egg in the game?
Where is Christmas Island?
Who sings the Christmas song?
What would I like to have for dinner tomorrow?
What do I do next Friday?
When do I fly next week?
Do I work on weekends?
Do I work on Mondays?
What is my date of birth?
Which of the top 5 may change?
This may sound strange, but who am I?
Who wrote about the fall of Rome?
Where is Easter Island?
What do I think of 1984?
What do I think of April?
Do I celebrate Mardi Gras?
Can you help me write a poem about spring?
How do I march in a parade?
What time is it in Tokyo?
Is my flight at 5 pm?
Do I wake up at 7?
Is the meeting at noon?
How long is a marathon?
How many weeks are in a year?
Do I sleep 8 hours?
What is 5 weeks in days?
My son is two years old, what does he like?
Does the project take three months?
Do I have two weeks of vacation?
What is the second half of the proverb?
What's on my Friday night playlist?
Is my Sunday roast recipe saved?
What is Black Friday?
Was that on the last page?
What is my last name?
Who was the last person I called?
What's the past tense of go?
Do I like The Weeknd?
Where is the Monday.com login?
Did Jan call?
Is Mai a common name in Vietnam?
What does Sept mean?
What's my autumn jacket size?
Which year was I born?
Who is the Fourth of July about?
Do I take the pill once a day?
How often a week do I run?
Can you remind me every Monday?
What should I do by Friday?
What do I have to do before Friday?
What will I do until Sunday?
What is Sol Invictus?
How much is 2024 divided by 2?
What does error 2003 mean?
Is the port 1999 open?
What's the total of invoice 2019?
Do I work from Monday to Friday?
"""
_GERMAN = """
Wer mag mich?
Was mag ich am liebsten?
Wo wohne ich?
Wie heißt mein Hund?
Welche Farbe hat mein Auto?
Wo ist hier ein Café?
Habe ich Allergien?
Wie alt bin ich?
Was ist mein Lieblingsessen?
Wie viele Kinder habe ich?
Arbeite ich samstags?
Wer ist Herr März?
Wie heißt Frau Sommer mit Vornamen?
Wie ist die Vorwahl?
Was kostet der Peugeot 2008?
Habe ich die 2000 Euro bezahlt?
Kann ich am Stück schlafen?
Welches Jahr ist mein Auto?
Wie viele Tage Urlaub habe ich?
Was soll ich morgen kochen?
Was mache ich nächste Woche?
Spielt der Mond eine Rolle?
Ist mein Bruder Vater?
Wie lange dauert die Fahrt?
Welche Sprachen spreche ich?
Was ist mein Beruf?
Was ist mein Passwort?
Wer ist mein Zahnarzt?
Was steht auf der Einkaufsliste?
Mag ich Herbstlaub?
Hat Frau Mai angerufen?
Was kann man hier machen?
Wer ist die Oma von Sonntag?
Was muss ich bis Freitag erledigen?
Was mache ich jeden Montag?
Mag ich den Frühling?
Wie lange dauert ein Monat?
Bin ich zwei Meter groß?
Habe ich drei Wochen Urlaub?
Wie heißt mein Arzt, Dr. Sommer?
Wie viele Stunden schlafe ich?
Ist der Termin um 17 Uhr?
Was steht auf Seite 2000?
Wo ist mein Jahreskalender?
Wer war Mozart?
Wann habe ich Geburtstag?
Arbeite ich von Montag bis Freitag?
"""
_FRENCH = """
Où est-ce que j'habite ?
Quel est mon plat préféré ?
Comment s'appelle mon chien ?
Ai-je des allergies ?
Quel âge ai-je ?
Combien d'enfants ai-je ?
Où ai-je été heureux ?
Qui est Mars dans la mythologie ?
Est-ce que j'aime les barres Mars ?
Quelle est la marque de ma voiture ?
Qui est mon dentiste ?
Est-ce que je travaille le lundi ?
Qu'est-ce que je fais tous les vendredis ?
Que dois-je faire demain ?
Qu'est-ce que je fais la semaine prochaine ?
J'ai été malade ?
Quelle langue est-ce que je parle ?
Combien coûte le vol ?
Qui est le second enfant ?
Ai-je un an d'expérience ?
Combien de jours de congé ai-je ?
Quel est mon mot de passe ?
Quelle est ma couleur préférée ?
Que dois-je finir avant vendredi ?
Est-ce que j'aime le printemps ?
Quel jour est mon anniversaire ?
Combien de semaines de vacances ai-je ?
Mon fils a deux ans, que mange-t-il ?
Le rendez-vous est à 17h ?
Qui est Madame Avril ?
Où est la place de mai ?
Qu'est-ce que je fais chaque matin ?
Est-ce que je travaille du lundi au vendredi ?
Est-ce que je travaille de lundi à vendredi ?
"""
_SPANISH = """
¿Dónde vivo?
¿Cómo se llama mi gato?
¿Cuál es mi comida favorita?
¿Tengo alergias?
¿Cuántos años tengo?
¿Cuántos hijos tengo?
¿Cuál es mi trabajo?
¿Me gusta el mar?
¿Quién es Abril?
¿Quién es Domingo Pérez?
¿Qué hago mañana?
¿Qué hago los lunes?
¿Qué tengo la semana que viene?
¿Cuál es mi contraseña?
¿Qué coche tengo?
¿Quién es mi dentista?
¿Tengo hermanos?
¿Cuánto cuesta el vuelo?
¿De qué color es mi bici?
¿Cuántos días de vacaciones tengo?
¿Quién es la segunda hija?
¿Qué idiomas hablo?
¿Me gusta la ensalada de marzo?
¿Me gusta la primavera?
¿Cuántas semanas de vacaciones tengo?
¿Mi hijo tiene dos años?
¿La cita es a las 5 de la tarde?
¿Quién es Julio?
¿Quién es Abril García?
¿Qué hago cada martes?
¿Qué tengo que hacer antes del viernes?
¿Cuál es mi segundo apellido?
¿Trabajo de lunes a viernes?
"""
_CHINESE = """
我住在哪里?
我的猫叫什么名字?
我最喜欢的食物是什么?
我对什么过敏?
我几岁?
我有几个孩子?
我的密码是什么?
离我家最近的超市在哪里?
我每周五做什么?
我下周五做什么?
明天我要做什么?
我一周跑步几次?
我的车是什么颜色?
我的牙医是谁?
我会说什么语言?
我几年级?
我有三个月的假吗?
月亮是什么颜色?
我的生日是哪天?
我有多少天假?
我喜欢吃月饼吗?
我爸爸的名字是什么?
我是做什么工作的?
我喜欢日本菜吗?
马上周末了我该做什么?
网上周边商品在哪里买?
之前天气预报说什么?
周五前我要完成什么?
我喜欢春天吗?
我女儿两岁半吗?
我有两周假期吗?
会议是下午5点吗?
我每天早上几点起床?
我们一共有几个人?
年轻人喜欢什么?
我喜欢几月份?
今后我该怎么办?
天气怎么样?
我周一到周五上班吗?
我从周一至周五上班吗?
"""
_JAPANESE = """
私はどこに住んでいますか?
猫の名前は何ですか?
好きな食べ物は何ですか?
アレルギーはありますか?
何歳ですか?
子供は何人いますか?
仕事は何ですか?
パスワードは何ですか?
車の色は何ですか?
毎週金曜日は何をしますか?
来週の金曜日の予定は?
明日の予定は?
歯医者は誰ですか?
何語を話せますか?
月は何色ですか?
火の用心とは何ですか?
誕生日はいつですか?
休みは何日ありますか?
日曜大工は好きですか?
趣味は何ですか?
好きな季節は何ですか?
一週間に何回走りますか?
金曜日までに何をすればいいですか?
春が好きですか?
休暇は2週間ありますか?
息子は2歳ですか?
会議は午後5時ですか?
毎朝何時に起きますか?
年齢は何歳ですか?
木の上にいるのは誰ですか?
水の味が好きですか?
今後どうすればいいですか?
日本に住んでいますか?
月曜日から金曜日まで働きますか?
"""


def _questions(*texts: str) -> list[str]:
    return [line for text in texts for line in text.splitlines() if line]


QUESTIONS = _questions(_ENGLISH, _GERMAN, _FRENCH, _SPANISH, _CHINESE, _JAPANESE)


def test_there_are_enough_questions() -> None:
    assert len(QUESTIONS) >= 150
    assert len(set(QUESTIONS)) == len(QUESTIONS)


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_ordinary_question_has_no_time_expression(question: str) -> None:
    assert days(question) == []
