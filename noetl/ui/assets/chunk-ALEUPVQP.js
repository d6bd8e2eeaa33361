import{a,b}from"./chunk-2ITUH3Y4.js";import"./chunk-FJ45RBS6.js";import"./chunk-53OLFRBG.js";import"./chunk-FBQMLJIN.js";import"./chunk-V2KXJXI6.js";export{a as Lineage,b as LineageGraph};
