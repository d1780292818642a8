import { describe, expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import * as Facilitation from '../../src/protocol/Facilitation'
import * as PaymentTerms from '../../src/protocol/PaymentTerms'
import { charging, type Made, makeBody } from '../harness/facilitation'
import { networkOf } from '../harness/settlement'

const network = networkOf('')
const now = Date.now()
const relayers = [account(0).address]

async function requestOf(made: Made, amount: bigint | number = 5_000n) {
  const body = charging(await makeBody(network, { scheme: 'upto', ...made }), amount)
  const parsed = Facilitation.parse(new TextEncoder().encode(JSON.stringify(body)))
  if (!('request' in parsed)) throw new Error('not read')
  return parsed.request
}

async function codeOf(made: Made, options: Partial<PaymentTerms.CheckOptions> = {}) {
  const checks = { operation: 'verify' as const, now, isKnown: false, relayers, ...options }
  return PaymentTerms.checkTerms(await requestOf(made), checks)?.code
}

describe('terms of upto', () => {
  test('time and relayer matter only until the payment is stored', async () => {
    const stranger = { facilitator: account(6).address }
    expect(await codeOf({})).toBeUndefined()
    expect(await codeOf(stranger)).toBe('upto_facilitator_mismatch')
    expect(await codeOf({ validBefore: 1n })).toBe('permit2_deadline_expired')
    // A relayer that was removed since may have sent the transaction.
    expect(await codeOf(stranger, { isKnown: true })).toBeUndefined()
    expect(await codeOf({ validBefore: 1n }, { isKnown: true })).toBeUndefined()
    expect(await codeOf({ to: account(8).address }, { isKnown: true })).toBe(
      'invalid_permit2_recipient_mismatch',
    )
  })

  test('the amount of verify is the ceiling, that of settle is at most the ceiling', async () => {
    for (const [amount, mismatch, above] of [
      [5_000n, undefined, undefined],
      [4_999n, 'permit2_amount_mismatch', undefined],
      [0n, 'permit2_amount_mismatch', undefined],
      [5_001n, 'permit2_amount_mismatch', 'invalid_upto_evm_payload_settlement_exceeds_amount'],
    ] as const) {
      const request = await requestOf({}, amount)
      const check = (operation: Facilitation.Operation) =>
        PaymentTerms.checkTerms(request, { operation, now, isKnown: false, relayers })?.code
      expect([check('verify'), check('settle')]).toEqual([mismatch, undefined])
      expect(PaymentTerms.exceeds(request)?.code).toBe(above)
    }
  })

  test('a fingerprint holds the charge, and that of another charge can be computed', async () => {
    const nonce = `0x${'17'.repeat(32)}` as const
    const [ceiling, charge] = [await requestOf({ nonce }), await requestOf({ nonce }, 12)]
    const [verified, settled] = [ceiling.requirements, charge.requirements]
    expect(verified.fingerprint).not.toBe(settled.fingerprint)
    expect(Facilitation.fingerprintAt(verified, 12n)).toBe(settled.fingerprint)
    expect(Facilitation.fingerprintAt(verified, 13n)).not.toBe(settled.fingerprint)
    const exact = await requestOf({ scheme: 'exact', method: 'permit2' })
    expect(Facilitation.fingerprintAt(exact.requirements, 12n)).toBe(exact.requirements.fingerprint)
  })
})
