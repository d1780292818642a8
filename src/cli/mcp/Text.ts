/** Text of a gateway, which may be hostile. It is data: none of it may look like text of ours. */

/** Most characters of a quotation. */
const quotedMax = 300

/**
 * Text without control characters, invisible characters and halves of surrogate pairs, except line
 * feeds and tabs, and with at most `most` characters.
 */
export function clean(text: string, most: number): string {
  const clipped = text.length > most ? `${text.slice(0, most)}...` : text
  return clipped.replace(/[^\P{C}\n\t]|[\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu, '')
}

/** A value of the gateway inside a sentence of ours: JSON of one line, in quotation marks. */
export function quote(value: unknown): string {
  return JSON.stringify(line(typeof value === 'string' ? value : '', quotedMax))
}

/** One clean line. */
export function line(text: string, most: number): string {
  return clean(text, most).replace(/\s+/g, ' ').trim()
}
