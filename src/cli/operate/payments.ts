import * as Json from '../../protocol/Json'
import { readText } from '../buy/body'
import * as Charge from '../buy/Charge'

/** A payment whose settlement has ended. */
export type Settled = {
  charge: Charge.Charge | undefined
  /** JSON of the receipt, or its value as a header has it. */
  receipt: string | undefined
  /** Whether the charge could not be settled, and never will be. */
  isFailed: boolean
}

/** How long a settlement is waited for, and the pause between two requests, ms. */
const settleMs = 20_000
const pauseMs = 300

/** States in which nothing more is settled. */
const ended = ['void', 'failed', 'expired']

/**
 * The payment at its URL once it is settled. Undefined when the server does not show it, or when it
 * is not settled in time. Never rejects.
 */
export async function findPayment(
  url: URL,
  token: string,
  now: () => number,
): Promise<Settled | undefined> {
  const until = now() + settleMs
  for (;;) {
    const payment = await read(url, token)
    if (payment === undefined) return undefined
    const receipt = receiptOf(payment)
    const state = Json.member(payment, 'state')
    if (receipt !== undefined || ended.some((each) => each === state))
      return {
        charge: Charge.ofPayment(payment),
        receipt,
        isFailed: state === 'failed' || state === 'expired',
      }
    if (now() + pauseMs >= until) return undefined
    await Bun.sleep(pauseMs)
  }
}

async function read(url: URL, token: string): Promise<Json.JsonObject | undefined> {
  try {
    const response = await fetch(url, {
      headers: { 'payment-token': token },
      redirect: 'manual',
      signal: AbortSignal.timeout(10_000),
    })
    return response.ok ? Json.parse(await readText(response)) : undefined
  } catch {
    return undefined
  }
}

function receiptOf(payment: Json.JsonObject): string | undefined {
  const receipt = Json.member(payment, 'receipt')
  if (typeof receipt === 'string') return receipt
  return receipt === undefined ? undefined : JSON.stringify(receipt)
}
