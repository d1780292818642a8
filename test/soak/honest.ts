import { type Hex, toHex } from 'viem'
import { account } from '../../src/demo/accounts'
import { ask } from '../harness/buyer'
import { x402Usdc } from '../harness/target'

export type Sale = {
  /** Ms of the paid request, and of the 402 before it. */
  paidMs: number
  askedMs: number
  /** 200 with the right content is success; 503 is a refusal, which must not be charged. */
  status: number
  isGood: boolean
  /** What a refusal said. */
  said: string
  /** Of the credential; undefined when no price was offered. */
  nonce: Hex | undefined
}

/** These accounts make no other payments. */
export const honestPayers = [account(1), account(2)]

const buyers = 4
const pauseMs = 50

/**
 * Lets honest buyers buy until `until` (performance.now()). Each request has another client
 * address.
 */
export async function buyHonestly(url: string, until: number): Promise<Sale[]> {
  const sales: Sale[] = []
  let serial = 0
  const buy = async (buyer: number) => {
    const payer = honestPayers[buyer % honestPayers.length] ?? account(1)
    while (performance.now() < until) {
      const n = ++serial
      const path = `${url}/m/a/get?n=${n}`
      const startedAt = performance.now()
      const asked = await ask(path)
      const askedMs = performance.now() - startedAt
      if (asked.response.status !== 402) {
        const said = await fetch(path).then((again) => again.text())
        const { status } = asked.response
        sales.push({ paidMs: 0, askedMs, status, isGood: false, said, nonce: undefined })
      } else {
        const nonce = toHex(crypto.getRandomValues(new Uint8Array(32)))
        const headers = await x402Usdc.pay(asked, payer.local(), { nonce })
        const address = `10.1.${(n >> 8) & 255}.${n & 255}`
        const paidAt = performance.now()
        const answer = await fetch(path, { headers: { ...headers, 'x-forwarded-for': address } })
        const text = await answer.text()
        const paidMs = performance.now() - paidAt
        const isGood = answer.status === 200 && text === JSON.stringify({ goods: `${n}` })
        sales.push({ paidMs, askedMs, status: answer.status, isGood, said: text, nonce })
      }
      await Bun.sleep(pauseMs)
    }
  }
  await Promise.all(Array.from({ length: buyers }, (_, buyer) => buy(buyer)))
  return sales
}

/** The value that one in a hundred exceeds; 0 of none. */
export function p99(values: readonly number[]): number {
  const sorted = values.toSorted((left, right) => left - right)
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * 0.99))] ?? 0
}
