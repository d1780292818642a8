import { readFileSync } from 'node:fs'
import { format, parse } from '../../config/merchants'
import * as Route from '../../gateway/Route'
import { quoteFor } from '../../gateway/upstream/metering'
import * as Charge from '../../meter/Charge'
import type { Meter } from '../../meter/Meter'
import type { Quote } from '../../meter/Quote'
import { createReader } from '../../meter/Reader'
import type { Usage } from '../../meter/Usage'
import * as Amount from '../../protocol/Amount'
import type { Context } from '../Command'

export type MeterOptions = Pick<Context, 'file' | 'env' | 'out'> & {
  /** `MERCHANT/ROUTE`, with the tail of the request where it has one. */
  route?: string
  /** The answer as the upstream sent it: JSON, or an event stream. */
  answer: string
  /** The body of the request. */
  request?: string
}

/**
 * Prints the cost of a stored answer. Returns the exit code: 1 when a file or the request is at
 * fault.
 */
export function meterAnswer(options: MeterOptions): number {
  const { out } = options
  try {
    for (const line of describe(options)) out(line)
    return 0
  } catch (error) {
    if (!(error instanceof MeterError)) throw error
    for (const line of error.lines) out(`turnpike: ${line}`)
    return 1
  }
}

class MeterError extends Error {
  override readonly name = 'MeterError'
  readonly lines: readonly string[]

  constructor(...lines: readonly string[]) {
    super(lines.join('\n'))
    this.lines = lines
  }
}

function describe(options: MeterOptions): string[] {
  const { file, env, route = '', answer, request } = options
  const { config, faults } = parse(read(file).toString(), { file, env })
  if (config === undefined) throw new MeterError(...faults.map(format))
  const match = Route.match(Route.compile(config.merchants), `/m/${route}`)
  if (match === undefined) throw new MeterError(`${file} sells no route "${route}"`)
  const { meter } = match.route
  if (meter === undefined) throw new MeterError(`${route} has a fixed price and no meter`)
  const quote = request === undefined ? anyRequest(meter) : quoteFor(match, read(request))
  if (quote === undefined) throw new MeterError(`${route} is not forwarded`)
  if (quote.faults.length > 0)
    throw new MeterError(...quote.faults.map(({ name, reason }) => `${name} ${reason}`))
  const usage = usageOf(meter, read(answer))
  const charge = Charge.of(meter, quote, usage)
  return [
    `route    ${route}, preset ${meter.preset}`,
    `models   ${quote.models.join(', ') || 'none'}`,
    `ceiling  ${shown(quote.ceilingAtomic)}`,
    `usage    ${usage.kind === 'used' ? listed(usage.counts) : usage.kind}`,
    `charged  ${listed(charge.units)}`,
    `charge   ${shown(charge.amountAtomic)} by ${charge.by}${charge.reason ? `: ${charge.reason}` : ''}`,
  ]
}

/** Without a request, every model may have answered and the ceiling is the price. */
function anyRequest(meter: Meter): Quote {
  const models = Object.keys(meter.models)
  return { ceilingAtomic: meter.priceAtomic, models, body: new Uint8Array(), faults: [] }
}

/** Stored answers have no head, so a text that begins like JSON is a whole answer. */
function usageOf(meter: Meter, bytes: Uint8Array): Usage {
  const isJson = /^\ufeff?\s*[[{]/.test(new TextDecoder().decode(bytes.subarray(0, 64)))
  const type = isJson ? 'application/json' : 'text/event-stream'
  const reader = createReader(meter, {
    status: 200,
    headers: new Headers({ 'content-type': type }),
  })
  reader.add(bytes)
  return reader.end()
}

function read(file: string): Buffer {
  try {
    return readFileSync(file)
  } catch {
    throw new MeterError(`${file} cannot be read`)
  }
}

function listed(counts: Readonly<Record<string, number>>): string {
  return (
    Object.entries(counts)
      .map(([unit, count]) => `${unit} ${count}`)
      .join(', ') || 'nothing'
  )
}

function shown(atomic: bigint): string {
  return `${Amount.toDecimal(atomic, 6)} USD (${atomic} atomic)`
}
