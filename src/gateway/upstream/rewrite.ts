import * as Members from '../../meter/Members'
import { format } from '../../meter/Pointer'
import * as Json from '../../protocol/Json'

type Mapping = Readonly<Record<string, Readonly<Record<string, string>>>>

/**
 * Replaces values of top-level members of a JSON object, such as a model's alias by its full id. It
 * edits the text, so that all other bytes stay as the buyer wrote them (big numbers, order,
 * spacing). A body that is not a JSON object, or that a route which reads its body refuses, is returned
 * unchanged.
 */
export function rewriteBody(body: Uint8Array, mapping: Mapping): Uint8Array {
  const names = Object.keys(mapping)
  if (names.length === 0 || body.byteLength === 0) return body
  const read = Json.readBody(body)
  if ('fault' in read || !Json.isObject(read.value)) return body
  const { text, value } = read
  const edits: Members.Edit[] = []
  const wanted = Members.wantedOf(names.map((name) => [name]))
  const members = new Map(Members.find(text, wanted).map((member) => [member.pointer, member]))
  for (const name of names) {
    const given = Json.member(value, name)
    const member = members.get(format([name]))
    const values = mapping[name] ?? {}
    if (member === undefined || typeof given !== 'string' || !Object.hasOwn(values, given)) continue
    edits.push({ start: member.start, end: member.end, text: JSON.stringify(values[given]) })
  }
  return edits.length === 0 ? body : new TextEncoder().encode(Members.apply(text, edits))
}
