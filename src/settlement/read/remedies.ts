/** What an operator must do about a reason of a pause, by the reason's text. */
const remedies: readonly (readonly [reason: RegExp, remedy: string])[] = [
  [/^no usable answer of/, 'check that the node runs and that rpc_urls names it; add a second URL'],
  [/ is not chain \d+$/, 'correct rpc_urls: they name a node of another chain'],
  [/^the clock of this machine/, 'set the clock of this machine by NTP, or name a node in step'],
  [/^the base fee is above|refuses the fees/, 'raise fee_cap_gwei, or wait until fees fall'],
  [/refuses the gas limit/, 'name another node in rpc_urls'],
  [/stays out at the fee cap/, 'raise fee_cap_gwei and restart, or wait until fees fall'],
  [/ is not at 0x/, 'correct the address in the file, or remove permit2 from transfer'],
  [
    /^DOMAIN_SEPARATOR of/,
    'correct eip712 of the asset: its name and version are of another token',
  ],
  [
    /^the database cannot be written/,
    'free space on the disk of the data directory, or make it writable for the user of turnpike',
  ],
]

/** What to do about a reason; undefined for one that ends by itself. */
export function remedyOfReason(reason: string): string | undefined {
  return remedies.find(([text]) => text.test(reason))?.[1]
}
