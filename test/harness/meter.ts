import { join } from 'node:path'
import * as Charge from '../../src/meter/Charge'
import type { Meter } from '../../src/meter/Meter'
import * as Quote from '../../src/meter/Quote'
import { createReader, type Head } from '../../src/meter/Reader'
import { read, small } from './config'

export const fixtures = join(import.meta.dir, '../fixtures/meter')

export function fixture(name: string): Promise<Uint8Array> {
  return Bun.file(join(fixtures, name)).bytes()
}

/** The small file with one more route, whose meter is this text. */
export function withMeter(meter: string, price = '0.05'): string {
  return small.replace(
    '[[merchants]]\nslug = "two"',
    `[[merchants.routes]]
path = "/chat"
methods = ["POST"]
price = "${price}"
[merchants.routes.meter]
${meter}

[[merchants]]
slug = "two"`,
  )
}

/** The meter that a file with this text has. */
export function meterOf(meter: string, price?: string): Meter {
  const { config, faults } = read(withMeter(meter, price))
  const found = config?.merchants[0]?.routes.at(-1)?.meter
  if (found === undefined) throw new Error(faults.map(({ message }) => message).join('\n'))
  return found
}

/** Input at 1 and output at 10 millionths of a dollar each, so that a charge shows its tokens. */
export const units = `units = [
  { name = "input", price = "1" },
  { name = "output", price = "10" },
]`

export const bytes = (text: string) => new TextEncoder().encode(text)
export const text = (body: Uint8Array) => new TextDecoder().decode(body)

export const paths = {
  openai: '/v1/chat/completions',
  responses: '/v1/responses',
  anthropic: '/v1/messages',
  gemini: '/v1beta/models/gemini-flash:streamGenerateContent',
}

export function quote(meter: Meter, body: string, path = paths.openai): Quote.Quote {
  return Quote.of(meter, { path, body: bytes(body) })
}

export function headOf(name: string): Head {
  const type = name.endsWith('.sse') ? 'text/event-stream; charset=utf-8' : 'application/json'
  return { status: 200, headers: new Headers({ 'content-type': type }) }
}

/** The usage of an answer that comes in these chunks. */
export function usage(meter: Meter, head: Head, chunks: Iterable<Uint8Array>) {
  const reader = createReader(meter, head)
  for (const chunk of chunks) reader.add(chunk)
  return reader.end()
}

/** The charge of an answer under a ceiling that it does not reach. */
export function charge(
  meter: Meter,
  head: Head,
  chunks: Iterable<Uint8Array>,
  quoted: Pick<Quote.Quote, 'ceilingAtomic' | 'models'> = {
    ceilingAtomic: meter.priceAtomic,
    models: [],
  },
): Charge.Charge {
  return Charge.of(meter, quoted, usage(meter, head, chunks))
}
