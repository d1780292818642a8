import * as Json from '../protocol/Json'

type Mapping = Readonly<Record<string, Readonly<Record<string, string>>>>

/**
 * Replaces values of top-level members of a JSON object, such as a model's alias by its full id. It
 * edits the text, so that all other bytes stay as the buyer wrote them (big numbers, order,
 * spacing). A body that is not a JSON object, or that a route which reads its body refuses, is returned
 * unchanged.
 */
export function rewriteBody(body: Uint8Array, mapping: Mapping): Uint8Array {
  if (Object.keys(mapping).length === 0 || body.byteLength === 0) return body
  const read = Json.readBody(body)
  if ('fault' in read || !Json.isObject(read.value)) return body
  const { text } = read
  let result = ''
  let from = 0
  for (const { name, start, end } of stringMembers(text)) {
    const value: unknown = JSON.parse(text.slice(start, end))
    const values = Object.hasOwn(mapping, name) ? mapping[name] : undefined
    if (typeof value !== 'string' || values === undefined) continue
    const replacement = Object.hasOwn(values, value) ? values[value] : undefined
    if (replacement === undefined) continue
    result += text.slice(from, start) + JSON.stringify(replacement)
    from = end
  }
  return from === 0 ? body : new TextEncoder().encode(result + text.slice(from))
}

type Member = { name: string; start: number; end: number }

/** Top-level members with a string value. The text must be a JSON object. */
function stringMembers(text: string): Member[] {
  const members: Member[] = []
  let depth = 0
  let name: string | undefined
  let isValue = false
  for (let index = 0; index < text.length; index++) {
    const character = text[index]
    if (character === '"') {
      const end = endOfString(text, index)
      if (depth === 1 && isValue && name !== undefined) members.push({ name, start: index, end })
      else if (depth === 1) name = JSON.parse(text.slice(index, end))
      index = end - 1
    } else if (character === '{' || character === '[') depth++
    else if (character === '}' || character === ']') depth--
    else if (depth === 1 && character === ':') isValue = true
    else if (depth === 1 && character === ',') isValue = false
  }
  return members
}

function endOfString(text: string, start: number): number {
  let index = start + 1
  while (text[index] !== '"') index += text[index] === '\\' ? 2 : 1
  return index + 1
}
