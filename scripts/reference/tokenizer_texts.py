"""Texts for the tokenizer checks: sentences in many scripts, code, white space of every kind, and strings drawn from them.
Everything is a function of a seed."""
import random

SENTENCES = [
    "All human beings are born free and equal in dignity and rights.",
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, and "
    "polite answers to the user's questions. USER: what is this? ASSISTANT: an ankle boot",
    "I'll say we've seen that they're done; it's what I'd do, don't you? I'm sure. HE'S HERE AND WE'RE GONE",
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Die Straße ist naß, der Käse schmeckt gut.",
    "Tous les êtres humains naissent libres et égaux en dignité et en droits. L'été à la plage, où êtes-vous ?",
    "Todos los seres humanos nacen libres e iguales en dignidad y derechos. ¿Qué tal, señor? ¡Adiós!",
    "Todos os seres humanos nascem livres e iguais em dignidade e em direitos. Não, obrigado; até amanhã.",
    "Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti. Perché no? Così è la vita.",
    "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw. Zażółć gęślą jaźń.",
    "Všichni lidé rodí se svobodní a sobě rovní co do důstojnosti a práv. Příliš žluťoučký kůň.",
    "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. İstanbul'da ılık bir gün.",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi.",
    "Minden emberi lény szabadon születik és egyenlő méltósága és joga van. Árvíztűrő tükörfúrógép.",
    "Все люди рождаются свободными и равными в своем достоинстве и правах. Привет, как дела?",
    "Всі люди народжуються вільними і рівними у своїй гідності та правах. Їжак, ґанок, є!",
    "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. שָׁלוֹם עֲלֵיכֶם",
    "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. مرحبا بالعالم ١٢٣٤٥",
    "تمام افراد بشر آزاد به دنیا می‌آیند و از لحاظ حیثیت و حقوق با هم برابرند. ۱۲۳۴",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। नमस्ते दुनिया १२३",
    "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।",
    "மனிதப் பிறிவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்; அவர்கள் மதிப்பிலும் சமமானவர்கள்.",
    "ప్రతిపత్తిస్వత్వముల విషయమున మానవులెల్లరును జన్మతః స్వతంత్రులును సమానులును నగుదురు.",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ สวัสดีชาวโลก",
    "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით.",
    "Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց արժանապատվությամբ ու իրավունքներով։",
    "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው።",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 안녕하세요 세계",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。今日は良い天気ですね。",
    "人人生而自由，在尊严和权利上一律平等。你好，世界！", "人人生而自由,在尊嚴和權利上一律平等。「繁體」中文",
    "🙂👍🏽👩‍👩‍👧 emoji and ½ ² Ⅷ ① symbols €100 £5 ¥7 «quoted» “curly” … — – • ∀x∈ℝ: ⌈x⌉ = −⌊−x⌋",
    "1 12 123 1234 12345 3.14159 2024-01-01 10:30:00 0xff 1,000,000 +49 (0)30 123456 50% 1e-5",
    "https://example.org/a_b?c=d&e=%20#f mail@example.org /usr/lib/x86_64-linux-gnu C:\\Program Files\\x",
]
CODE = [
    "def f(x: int) -> str:\n    return f\"{x + 1:>8}\"\r\n\r\n\tif x > 10:\n\t\tprint('hello   world')\n\n\n    # comment 12345 678\n",
    "for (std::size_t i = 0; i + 1 < v.size(); ++i) { sum += v[i] * v[i + 1]; }  // a sum\n#include <vector>\n",
    "fn main() {\n    let mut x: Vec<u8> = vec![0; 16];\n    println!(\"{:?}\", &x[..4]);\n}\n",
    "{\"id\": 7, \"text\": \"a\\nb\", \"list\": [1, 2.5, null, true], \"nested\": {\"k\": \"v\"}}",
    "<div class=\"row\"><p>Hello &amp; bye</p><!-- x --></div>\n<br/>", "SELECT a, COUNT(*) FROM t WHERE b >= 3 GROUP BY a;",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n# Title\n\n- item\n  - sub\n```sh\nls -la | grep '^d' > out.txt 2>&1\n```\n",
    "\\begin{align} \\frac{a}{b} &= \\sum_{i=1}^{n} x_i^2 \\\\ \\end{align}", "x = (a&b)|~c^d<<2; y ??= z?.w ?? 0; () => {}",
]
SPACES = [" ", "  ", "   ", "    ", "\t", "\n", "\n\n", "\r\n", " \n", "\n ", "\u00a0", "\u2003", "\u3000", "\u200b", "\u180e",
          "\u0085", "\u2028", "\ufeff", "\x0b", "\x1c", "\u2581", "\u2581\u2581", " \u2581 "]
TAGS = ["<s>", "</s>", "<unk>", "<image>", "<audio>", "<pad>", "<|im_start|>", "<|im_end|>", "<|image_pad|>", "<think>",
        "</think>", "<tool>", "<tool_call>", "<ab", "<abcd", "<mask>", "wordy", "[INST]", "[/INST]", "<0x0A>", "<0xE2>",
        "\u304cX", "\u304b\u3099X", "zebra", " zebra", "xylo", "<|im_", "|>", "<<", "</"]
MARKS = ["\u0301", "\u0308", "\u0323\u0307", "\u3099", "\u093c", "\u1161", "\u1112\u1161\u11ab", "\u212b", "\ufb01", "\u017f",
         "\ufffd", "\U0010ffff", "\ue000", "\u0378", "\x00", "\u200d", "\ufe0f", "\u202e", "ǅ", "ẞ", "İ", "ı", "'s", "'\u017f", "'RE"]
RANGES = [(0x20, 0x7e), (0x20, 0x7e), (0xa0, 0x17f), (0x180, 0x24f), (0x300, 0x36f), (0x370, 0x3ff), (0x400, 0x4ff), (0x531, 0x58f),
          (0x5d0, 0x5ea), (0x600, 0x6ff), (0x900, 0x97f), (0x980, 0x9ff), (0xb80, 0xbff), (0xe00, 0xe7f), (0x10a0, 0x10ff),
          (0x1200, 0x137f), (0x1e00, 0x1eff), (0x2000, 0x206f), (0x2190, 0x22ff), (0x2460, 0x24ff), (0x2500, 0x25ff), (0x3040, 0x30ff),
          (0x4e00, 0x9fff), (0xac00, 0xd7a3), (0xf900, 0xfaff), (0xff00, 0xffef), (0x1d400, 0x1d7ff), (0x1f300, 0x1f6ff), (0x20000, 0x2a6df)]


def words(rng):
    text = rng.choice(SENTENCES if rng.random() < 0.8 else CODE)
    cut = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    return text[cut[0]:min(cut[1], cut[0] + 60)]


def letters(rng):
    low, high = rng.choice(RANGES)
    return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 12)))


def drawn(rng):
    """One string: pieces of sentences and code, single letters of any script, white space, marks, things like tokens."""
    parts = []
    for _ in range(rng.choice([1, 1, 2, 2, 3, 4, 6])):
        kind = rng.random()
        if kind < 0.4:
            parts.append(words(rng))
        elif kind < 0.6:
            parts.append(letters(rng))
        elif kind < 0.75:
            parts.append(rng.choice(SPACES) * rng.choice([1, 1, 1, 2, 5]))
        elif kind < 0.85:
            parts.append(rng.choice(TAGS))
        elif kind < 0.93:
            parts.append(rng.choice(MARKS))
        else:
            parts.append(str(rng.randrange(10 ** rng.randint(1, 9))))
        if rng.random() < 0.3:
            parts.append(" ")
    return "".join(parts)


def texts(count, seed):
    rng = random.Random(seed)
    found = [s for group in (SENTENCES, CODE, SPACES, TAGS, MARKS) for s in group]
    seen = set(found)
    while len(found) < count:
        text = drawn(rng)
        if text not in seen and not any(0xd800 <= ord(c) < 0xe000 for c in text):
            seen.add(text)
            found.append(text)
    return found[:count]
