import { rewritten, tampered } from './target'

/** xorshift32: each run is the same. */
export function random(seed: number): Die {
  let state = seed
  return (below) => {
    state ^= state << 13
    state ^= state >>> 17
    state ^= state << 5
    return (state >>> 0) % below
  }
}

/** An integer below `below`. */
export type Die = (below: number) => number
const scraps = [
  '"',
  '\\',
  '{',
  '}',
  '[',
  ']',
  ':',
  ',',
  '0',
  '9',
  '-',
  '.',
  'e',
  'x',
  '0x',
  'null',
  'true',
  '__proto__',
  '\u0000',
  '\u00e9',
  '\ud83d\ude00',
  ' ',
  '\n',
  '=',
  '+',
  '/',
  '%',
  '1e9',
  '"a":1,',
]
export const pick = <T>(die: Die, all: readonly T[]): T => all[die(all.length)] as T

function mutateText(die: Die, text: string): string {
  const at = die(text.length + 1)
  const span = die(4) === 0 ? die(40) : die(3)
  switch (die(6)) {
    case 0:
      return text.slice(0, at) + pick(die, scraps) + text.slice(at)
    case 1:
      return text.slice(0, at) + text.slice(at + 1 + span)
    case 2:
      return text.slice(0, at) + pick(die, scraps) + text.slice(at + 1)
    case 3:
      return text.slice(0, at) + text.slice(at, at + span + 1) + text.slice(at)
    case 4:
      return text.slice(0, at)
    default: {
      const digits = [...text.matchAll(/\d/g)]
      const { index = 0 } = digits[die(Math.max(1, digits.length))] ?? {}
      return text.slice(0, index) + String(die(10)) + text.slice(index + 1)
    }
  }
}

/** A credential with its JSON, its encoding or its header broken. */
export function mutate(die: Die, headers: Record<string, string>): Record<string, string> {
  const broken = (text: string) => {
    let changed = text
    for (let times = 0; times <= die(3); times++) changed = mutateText(die, changed)
    return changed
  }
  if (die(4) > 0) return rewritten(headers, broken)
  const printable = (text: string) => text.replace(/[^\x20-\x7e]/g, '~').trim()
  return Object.fromEntries(
    Object.entries(headers).map(([name, value]) => [name, printable(broken(value))]),
  )
}

/** Whether a mutant has the same content as the original: then it is rightly served. */
export function isSame(original: Record<string, string>, mutant: Record<string, string>): boolean {
  try {
    return essencesOf(original).includes(essence(mutant))
  } catch {
    return false
  }
}

const essences = new WeakMap<Record<string, string>, readonly string[]>()

/** Those of an original with and without `accepted`, which thousands of mutants are compared with. */
function essencesOf(original: Record<string, string>): readonly string[] {
  const known = essences.get(original)
  if (known !== undefined) return known
  const bare = tampered(original, { accepted: undefined })
  const both = [essence(original), essence(bare)]
  essences.set(original, both)
  return both
}

/** The JSON of a credential. */
export function textOf(headers: Record<string, string>): Record<string, unknown> {
  let json: Record<string, unknown> = {}
  rewritten(headers, (text) => {
    json = JSON.parse(text)
    return text
  })
  return json
}

/** The members of a credential that determine the payment; one text for all spellings. */
function essence(headers: Record<string, string>): string {
  const { challenge, payload, accepted } = textOf(headers)
  const names =
    /\.(?:id|realm|method|intent|request|expires|digest|opaque|type|from|to|value|amount|token|nonce|deadline|requestedAmount|validBefore|signature)$/
  const parts = membersOf({ challenge, payload }).filter(([path]) => names.test(path))
  // Without it the offer is found from the other members.
  const chosen = accepted === undefined || accepted === null ? [] : membersOf({ accepted })
  return JSON.stringify([parts, chosen]).toLowerCase()
}

/** Every value below an object with its path, sorted. */
function membersOf(value: unknown, path = ''): [string, string][] {
  if (typeof value !== 'object' || value === null) return [[path, String(value)]]
  return Object.entries(value)
    .flatMap(([name, member]) => membersOf(member, `${path}.${name}`))
    .sort()
}
