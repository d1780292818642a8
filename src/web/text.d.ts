declare module '*.css' {
  const text: string
  // biome-ignore lint/style/noDefaultExport: the shape of a text import
  export default text
}

declare module '*.svg' {
  const text: string
  // biome-ignore lint/style/noDefaultExport: the shape of a text import
  export default text
}

declare module '*.js' {
  const text: string
  // biome-ignore lint/style/noDefaultExport: the shape of a text import
  export default text
}
