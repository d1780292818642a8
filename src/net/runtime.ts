/**
 * Modules of the runtime that load slowly, streams included. No start needs them, so they are
 * loaded at their first use.
 */
export const net = () => process.getBuiltinModule('node:net')
export const zlib = () => process.getBuiltinModule('node:zlib')
