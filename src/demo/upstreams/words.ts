import { type Ask, count, number, type Reply, type Route } from './reply'

const license = { name: 'CC BY-SA 3.0', url: 'https://creativecommons.org/licenses/by-sa/3.0' }
const meanings: Readonly<Record<string, readonly (readonly [string, string, string])[]>> = {
  toll: [
    [
      'noun',
      'A fee paid for some liberty or privilege, such as passing over a bridge.',
      'We paid the toll and drove on.',
    ],
    ['verb', 'To ring a bell slowly and repeatedly.', 'The bell tolled at noon.'],
  ],
  serendipity: [
    ['noun', 'An unsought, unintended and fortunate discovery.', 'It was pure serendipity.'],
  ],
  gateway: [
    ['noun', 'An entrance capable of being blocked by use of a gate.', 'They met at the gateway.'],
  ],
}
// The real dictionary does not have these either.
const missing = new Set(['is', 'look', 'every', 'tight'])

function define({ captures }: Ask): Reply {
  const word = (captures[0] ?? '').toLowerCase()
  if (!/^[a-z][a-z' -]{0,40}$/.test(word) || missing.has(word) || /(.)\1\1/.test(word)) {
    return {
      status: 404,
      body: {
        title: 'No Definitions Found',
        message: "Sorry pal, we couldn't find definitions for the word you were looking for.",
        resolution: 'You can try the search again at later time or head to the web instead.',
      },
    }
  }
  const found = meanings[word] ?? [
    ['noun', `That which is called ${word}.`, `Here is a ${word}.`] as const,
  ]
  return {
    body: [
      {
        word,
        phonetic: `/${word}/`,
        phonetics: [
          {
            text: `/${word}/`,
            audio: `https://api.dictionaryapi.dev/media/pronunciations/en/${word}-us.mp3`,
            sourceUrl: 'https://commons.wikimedia.org/w/index.php?curid=1',
            license,
          },
        ],
        meanings: found.map(([partOfSpeech, definition, example]) => ({
          partOfSpeech,
          definitions: [{ definition, synonyms: [], antonyms: [], example }],
          synonyms: [],
          antonyms: [],
        })),
        license,
        sourceUrls: [`https://en.wiktionary.org/wiki/${word}`],
      },
    ],
  }
}

const lexicon =
  'fee,charge,levy,tariff,duty,price,cost,road,bridge,gate,passage,knell,bell,roll,bowl,coal,goal,hole,mole,pole,soul,stroll,control,patrol,enroll'.split(
    ',',
  )

function related({ url }: Ask): Reply {
  const names = ['ml', 'sl', 'sp', 'rel_syn', 'rel_rhy', 'rel_trg', 'rel_jja']
  const asked = names.map((name) => url.searchParams.get(name)).filter(Boolean)
  if (asked.length === 0 || asked.some((word) => /^(xq|zz)/i.test(word ?? ''))) return { body: [] }
  const withDefinitions = (url.searchParams.get('md') ?? '').includes('d')
  const body = lexicon
    .map((word) => ({
      word,
      score: number(`${asked.join('|')}|${word}`, 100, 100_000),
      numSyllables: Math.ceil(word.length / 4),
      tags: ['n'],
      ...(withDefinitions ? { defs: [`n\tA ${word}, as sampled.`] } : {}),
    }))
    .sort((a, b) => b.score - a.score)
    .slice(0, count(url, 'max', 100, 1000))
  return { body }
}

/** Free Dictionary API and Datamuse. */
export const routes: readonly Route[] = [
  { path: /^\/api\/v2\/entries\/en\/([^/]+)$/, answer: define },
  { path: /^\/words$/, answer: related },
]
