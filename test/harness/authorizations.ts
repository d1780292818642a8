import type { Authorization } from '../../db/Authorization'
import { account } from '../../src/demo/accounts'
import { network } from './desk-orders'
import { newAddress } from './products'

let serial = 0

/** An authorization of the scheme `upto` that no other test of this process has. */
export function authorizationOf(
  changes: Partial<Authorization> = {},
  payer = newAddress(),
): Authorization {
  const id = `pay_${(++serial).toString(16).padStart(12, '0')}`
  return {
    id,
    transfer: {
      method: 'permit2',
      network: network.id,
      chainId: network.chainId,
      asset: network.asset.address,
      payer,
      payee: account(2).address,
      amountAtomic: 600n,
      nonce: `0x${serial.toString(16).padStart(64, 'f')}`,
      validAfter: 0n,
      validBefore: 2_000_000_000n,
      signature: '0x11',
      upto: { ceilingAtomic: 600n, facilitator: account(0).address },
      ...(serial % 2 === 0 && { permit2612: { valueAtomic: 7n, deadline: 8n, signature: '0x12' } }),
    },
    purpose: {
      ...{ product: 'gateway', protocol: 'x402', merchant: 'm', route: '/r', fingerprint: 'f' },
      ...{ resource: 'http://localhost/m/r', idempotencyKey: undefined, challengeId: undefined },
      ...{ credentialHash: 'c'.repeat(64), bound: serial % 2 === 0 },
    },
    state: 'authorized',
    charge: undefined,
    delivered: undefined,
    failedAt: undefined,
    receivedAt: 1_000,
    knownBlock: 12n,
    createdAt: 1_001,
    ...changes,
  }
}
