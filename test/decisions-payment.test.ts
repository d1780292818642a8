import { describe, expect, test } from 'bun:test'
import { scripted } from './harness/scripted'

describe.concurrent('a payment', () => {
  test('behavior: is confirmed by the Transfer log of its own transaction', async () => {
    await using own = await scripted()
    const transfer = own.sign()
    const outcome = await own.pay(transfer)
    expect(outcome).toMatchObject({ kind: 'confirmed', payment: { state: 'confirmed', transfer } })
    expect(own.rows()).toMatchObject([{ nonce: 0, kind: 'payment', state: 'mined' }])
  })
})
