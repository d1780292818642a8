import type { Address } from 'viem'

/** Canonical x402UptoPermit2Proxy, the same on every chain; the signed `spender`. */
export const proxyAddress: Address = '0x4020A4f3b7b90ccA423B9fabCc0CE57C6C240002'
